// The page's start, and translations from their beginning to their end.

import { ApiError, call, stream } from './api.js';
import { nameButton } from './files.js';
import { fillModels, request, setModels, swapLanguages } from './form.js';
import { $, announce, askForKey, fail, remembered, say, setTheme } from './page.js';
import { clear, mirror, show, shownText, unpin } from './result.js';
import { INTERFACES, languageName, speak, text } from './texts.js';

let running = null; // AbortController of the request in progress
let ready = false; // true if there are models

async function loadModels() {
  try {
    ready = setModels(await call('v1/models'));
    say(ready ? null : new ApiError(text('noModel')));
  } catch (error) {
    fail(error, loadModels);
  }
}

async function translate() {
  const source = $('source').value;
  if (!ready) await loadModels();
  if (!source.trim() || !ready) return;
  forget();
  say(null);
  const control = new AbortController();
  setRunning(control);
  try {
    const html = $('format').value === 'html';
    const answer = await (html ? translateMarkup : translateStream)(source, control.signal);
    show(answer, source, html);
    announce(text('done'));
  } catch (error) {
    if (error.name === 'AbortError') announce(text('stopped'));
    else if (running === control) fail(error, translate);
  } finally {
    if (running === control) setRunning(null);
  }
}

async function translateMarkup(source, signal) {
  const asked = { ...request(), contents: [source], markup: 'MARKUP_HTML' };
  const { translations, timings } = await call('v1/text:translate', asked, signal);
  return { translation: translations[0], timings };
}

async function translateStream(source, signal) {
  let last = {};
  const growing = document.createTextNode('');
  $('output').replaceChildren(growing);
  await stream('v1/text:streamTranslate', { ...request(), content: source }, signal, (message) => {
    last = message;
    growing.appendData((message.stableText ?? '').slice(growing.length));
  });
  if (!last.translation) throw new ApiError(text('unreachable'));
  return last;
}

function setRunning(control) {
  running?.abort();
  running = control;
  $('translate').textContent = text(control ? 'stop' : 'translate');
  $('output').classList.toggle('waiting', control !== null);
  $('output').setAttribute('aria-busy', String(control !== null));
}

function forget() {
  setRunning(null);
  clear();
}

function swap() {
  const translated = shownText();
  swapLanguages();
  if (translated) $('source').value = translated;
  forget();
}

function setLanguage(chosen) {
  $('interface').value = speak(chosen);
  $('translate').textContent = text(running ? 'stop' : 'translate');
  nameButton();
  if (ready) fillModels();
}

$('form').addEventListener('submit', (event) => {
  event.preventDefault();
  if (running) setRunning(null);
  else translate();
});
$('source').addEventListener('keydown', (event) => {
  if (event.key !== 'Enter' || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  translate();
});
$('source').addEventListener('input', () => (shownText() || running ? forget() : mirror()));
document.addEventListener('keydown', (event) => {
  if (event.key !== 'Escape' || $('key-dialog').open) return;
  if (running) setRunning(null);
  else unpin();
});
$('swap').addEventListener('click', swap);
$('key-button').addEventListener('click', () => askForKey('', loadModels));
$('interface').addEventListener('change', () => {
  remembered.set('language', $('interface').value);
  setLanguage($('interface').value);
});

for (const code of INTERFACES) {
  const option = new Option(languageName(code, code), code);
  option.lang = code;
  $('interface').append(option);
}
setTheme(remembered.get('theme'));
setLanguage(remembered.get('language') ?? (navigator.language ?? 'en').slice(0, 2));
mirror();
loadModels();
