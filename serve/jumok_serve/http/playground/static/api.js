// The server's JSON API: calls, streams of events, and errors in words.

import { text } from './texts.js';

const KEY = 'jumok.key';

// The key of this tab.
export const key = {
  get: () => sessionStorage.getItem(KEY) ?? '',
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

// An error of the server or on the way to it; `status` is gRPC's name, or empty.
export class ApiError extends Error {
  constructor(words, { status = '', detail = '' } = {}) {
    super(words);
    this.status = status;
    this.detail = detail;
  }
}

// Call a method; with a body it is a POST.
export async function call(path, body, signal) {
  const response = await send(path, body, signal);
  return response.json();
}

// Call a method whose response is a stream, and pass each message to a function.
export async function stream(path, body, signal, take) {
  const response = await send(path, body, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { value, done } = await reading(reader);
    if (done) return;
    const blocks = (rest + value).split('\n\n');
    rest = blocks.pop();
    for (const block of blocks) {
      const fields = Object.fromEntries(block.split('\n').map((line) => [line.slice(0, line.indexOf(':')), line.slice(line.indexOf(':') + 2)]));
      const message = JSON.parse(fields.data);
      if (fields.event === 'error') throw described(message.error, null);
      take(message);
    }
  }
}

async function reading(reader) {
  try {
    return await reader.read();
  } catch (error) {
    throw unreachable(error);
  }
}

async function send(path, body, signal) {
  const headers = {};
  if (key.get()) headers.authorization = `Bearer ${key.get()}`;
  if (body !== undefined) headers['content-type'] = 'application/json';
  let response;
  try {
    const method = body === undefined ? 'GET' : 'POST';
    response = await fetch(path, { method, headers, body: JSON.stringify(body), signal, cache: 'no-store' });
  } catch (error) {
    throw unreachable(error);
  }
  if (response.ok) return response;
  const content = await response.json().catch(() => ({}));
  throw described(content.error ?? {}, response);
}

function unreachable(error) {
  return error.name === 'AbortError' ? error : new ApiError(text('unreachable'));
}

// Say an error in the interface's words, and in the server's.
function described(error, response) {
  const { status = '', message = '' } = typeof error === 'object' ? error : { message: String(error) };
  const seconds = response?.headers.get('retry-after');
  const words = {
    INVALID_ARGUMENT: 'refused', FAILED_PRECONDITION: 'refused', NOT_FOUND: 'refused', UNIMPLEMENTED: 'refused',
    UNAUTHENTICATED: key.get() ? 'keyWrong' : 'keyNeeded', PERMISSION_DENIED: 'keyForbidden', UNAVAILABLE: 'unavailable', DEADLINE_EXCEEDED: 'timeout',
    RESOURCE_EXHAUSTED: seconds ? 'throttled' : 'tooLong',
  }[status] ?? 'fault';
  return new ApiError(text(words, { seconds }), { status, detail: message });
}
