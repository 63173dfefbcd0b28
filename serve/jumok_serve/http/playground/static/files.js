// Translation of a file: its bytes go to the server, and the translated ones come back as they are complete.

import { stream } from './api.js';
import { request } from './form.js';
import { $, announce, fail, make, say } from './page.js';
import { text } from './texts.js';

let running = null; // AbortController of the request in progress

async function translateFile() {
  const [file] = $('file').files;
  if (!file) return;
  clear();
  say(null);
  const control = new AbortController();
  setRunning(control);
  try {
    const parts = [];
    const asked = { settings: { name: file.name, translation: settings() }, file: await encoded(file) };
    await stream('v1/files:translate', asked, control.signal, (message) => {
      if (message.file) parts.push(decoded(message.file));
      showProgress(message);
    });
    offer(new Blob(parts), file.name, asked.settings.translation.targetLanguageCode);
    announce(text('done'));
  } catch (error) {
    if (error.name === 'AbortError') announce(text('stopped'));
    else if (running === control) fail(error, translateFile);
  } finally {
    if (running === control) setRunning(null);
  }
}

// Make the settings of a file from the form: one translation of each sentence.
function settings() {
  const { options, ...others } = request();
  return { ...others, options: { beamSize: options.beamSize }, splitSentences: true, copyUnreadable: true };
}

function encoded(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener('load', () => resolve(reader.result.slice(reader.result.indexOf(',') + 1)));
    reader.addEventListener('error', () => reject(reader.error));
    reader.readAsDataURL(file);
  });
}

const decoded = (base64) => Uint8Array.from(atob(base64), (one) => one.charCodeAt(0));

function showProgress({ textCount = 0, translatedCount = 0, problems = [] }) {
  $('file-progress').max = textCount || 1;
  $('file-progress').value = textCount ? translatedCount : 1;
  for (const { line = 0, part, error } of problems) {
    const place = part ? `${part}:${line}` : line;
    $('file-problems').append(make('li', text('problem', { line: place, text: error?.message ?? '' })));
  }
}

// Offer the translated file under the name of the first one, with the language before its ending.
function offer(content, name, language) {
  const dot = name.lastIndexOf('.');
  const saved = dot > 0 ? `${name.slice(0, dot)}.${language}${name.slice(dot)}` : `${name}.${language}`;
  const link = $('file-link');
  link.href = URL.createObjectURL(content);
  link.download = saved;
  link.textContent = text('download', { name: saved });
  link.hidden = false;
}

function clear() {
  if ($('file-link').href) URL.revokeObjectURL($('file-link').href);
  $('file-link').removeAttribute('href');
  $('file-link').hidden = true;
  $('file-progress').hidden = true;
  $('file-problems').replaceChildren();
}

function setRunning(control) {
  running?.abort();
  running = control;
  if (control) showProgress({ textCount: 1 });
  if (control) $('file-progress').hidden = false;
  nameButton();
}

// Name the button in the interface's language.
export function nameButton() {
  $('translate-file').textContent = text(running ? 'stop' : 'translateFile');
}

$('file').addEventListener('change', () => {
  setRunning(null);
  clear();
  $('translate-file').disabled = !$('file').files.length;
});
$('files').addEventListener('dragover', (event) => event.preventDefault());
$('files').addEventListener('drop', (event) => {
  event.preventDefault();
  if (!event.dataTransfer.files.length) return;
  $('file').files = event.dataTransfer.files;
  $('file').dispatchEvent(new Event('change'));
});
$('translate-file').addEventListener('click', () => (running ? setRunning(null) : translateFile()));
