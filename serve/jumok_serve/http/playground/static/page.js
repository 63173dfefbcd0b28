// Elements of the page, what the browser remembers, and messages.

import { ApiError, key } from './api.js';
import { text } from './texts.js';

export const $ = (id) => document.getElementById(id);

export function make(name, content = '') {
  const element = document.createElement(name);
  element.textContent = content;
  return element;
}

// Choices that last; without storage they last as long as the page.
export const remembered = {
  get(name) {
    try {
      return localStorage.getItem(`jumok.${name}`);
    } catch {
      return null;
    }
  },
  set(name, value) {
    try {
      localStorage.setItem(`jumok.${name}`, value);
    } catch {
      // storage is off
    }
  },
};

// Show an error; null: none.
export function say(error) {
  $('message').hidden = error === null;
  $('message').replaceChildren(error?.message ?? '');
  if (error?.detail) {
    const detail = make('span', error.detail);
    detail.className = 'detail';
    $('message').append(detail);
  }
}

// Tell readers of the screen what happened.
export function announce(words) {
  $('status').textContent = words;
}

// Show an error, and ask for a key if that may help; `again` is then called.
export function fail(error, again) {
  if (error.name === 'AbortError') return;
  if (!(error instanceof ApiError)) {
    console.error(error);
    say(new ApiError(text('fault'), { detail: String(error) }));
    return;
  }
  say(error);
  if (['UNAUTHENTICATED', 'PERMISSION_DENIED'].includes(error.status)) askForKey(error.message, again);
}

let afterKey = () => {};

// Ask for the key, for a reason in words or none.
export function askForKey(reason, again) {
  afterKey = again;
  $('key-reason').textContent = reason ? `${reason} ${text('keyHint')}` : text('keyHint');
  $('key').value = key.get();
  if (!$('key-dialog').open) $('key-dialog').showModal();
  $('key').focus();
}

$('key-cancel').addEventListener('click', () => $('key-dialog').close());
$('key-form').addEventListener('submit', (event) => {
  event.preventDefault();
  key.set($('key').value.trim());
  $('key-dialog').close();
  say(null);
  afterKey();
});

export function setTheme(theme) {
  const dark = theme ? theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  if (theme) document.documentElement.dataset.theme = theme;
  $('theme').setAttribute('aria-pressed', String(dark));
}

$('theme').addEventListener('click', () => {
  const theme = $('theme').getAttribute('aria-pressed') === 'true' ? 'light' : 'dark';
  remembered.set('theme', theme);
  setTheme(theme);
});
