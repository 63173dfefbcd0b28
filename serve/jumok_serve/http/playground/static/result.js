// The result: translations, their words, and attention.

import { ApiError } from './api.js';
import { Attention, fillNumbers, light, showMatrix, showWords } from './attention.js';
import { languages } from './form.js';
import { $, announce, fail, make } from './page.js';
import { languageName, text } from './texts.js';
import { words } from './words.js';

let shown = null; // the translation on the page

// Return the text of the translation on the page; empty: none.
export const shownText = () => shown?.target ?? '';

// Show a complete translation of a text.
export function show({ translation, timings }, source, html) {
  const { hypotheses = [], model = '', outputTokenCount = 0, pivot } = translation;
  const [from, to] = languages();
  const pair = [translation.sourceLanguageCode ?? from, translation.targetLanguageCode ?? to];
  shown = { source, html, hypotheses, model, pair, pivot: Boolean(pivot), target: '' };
  const time = Math.round(parseFloat(timings?.totalDuration ?? '0') * 1000);
  $('measures').textContent = text('measures', { tokens: outputTokenCount, time, model });
  showNotes(translation);
  showHypotheses();
  choose(0);
}

// Remove the result; the text has changed.
export function clear() {
  shown = null;
  $('output').replaceChildren();
  $('measures').textContent = '';
  $('notes').hidden = true;
  $('alternatives').hidden = true;
  $('copy').disabled = true;
  mirror();
  showTable();
}

function showNotes({ sourceLanguageCode, sourceLanguageConfidence, sourceTruncated, sourceUnknownCount = 0, cutSentences = [], hypotheses = [] }) {
  const missing = (hypotheses[0]?.terms ?? []).filter((term) => !term.satisfied).map((term) => term.source);
  const notes = [
    ...(sourceLanguageConfidence ? [text('detected', { name: languageName(sourceLanguageCode) })] : []),
    ...(sourceTruncated ? [text('truncated')] : []),
    ...(sourceUnknownCount ? [text('unknown', { count: sourceUnknownCount })] : []),
    ...cutSentences.map((sentence) => text('cut', { text: sentence })),
    ...(missing.length ? [text('notWritten', { text: missing.join(', ') })] : []),
  ];
  $('notes').hidden = !notes.length;
  $('notes').replaceChildren(...notes.map((note) => make('li', note)));
}

function showHypotheses() {
  const { hypotheses } = shown;
  $('alternatives').hidden = hypotheses.length < 2;
  $('hypotheses').replaceChildren(...hypotheses.map((one, index) => {
    const button = make('button');
    button.type = 'button';
    button.className = 'hypothesis';
    const score = make('span', (one.score ?? 0).toFixed(3));
    score.className = 'score';
    score.title = text('score');
    button.append(score, make('span', one.text ?? ''));
    button.addEventListener('click', () => choose(index));
    const item = make('li');
    item.append(button);
    return item;
  }));
}

// Show one of the hypotheses as the translation.
function choose(index) {
  const { source, html, hypotheses, pair, model } = shown;
  for (const [place, item] of [...$('hypotheses').children].entries()) {
    item.firstChild.setAttribute('aria-pressed', String(place === index));
  }
  const target = hypotheses[index]?.text ?? '';
  const attention = html ? null : new Attention({ source, target, languages: pair, model });
  Object.assign(shown, { target, attention, pinned: -1, active: -1, elements: [], mirrored: [] });
  $('copy').disabled = !target;
  if (html) $('output').textContent = target;
  else showTarget(termPlaces(target, hypotheses[index]?.terms ?? []));
  showTable();
}

function showTarget(marked) {
  const { target, attention } = shown;
  const elements = showWords($('output'), target, attention.targetWords, (place) => {
    const one = make('span');
    one.setAttribute('role', 'button');
    one.setAttribute('aria-pressed', 'false');
    one.tabIndex = -1;
    one.classList.toggle('term', marked.some(({ first, after }) => first < place.after && place.first < after));
    return one;
  });
  if (elements.length) elements[0].tabIndex = 0;
  Object.assign(shown, { elements, mirrored: mirror() });
}

// Return the places of terms in UTF-16 units; the server counts code points.
function termPlaces(target, terms) {
  const points = [...target];
  const units = (count = 0) => points.slice(0, count).join('').length;
  return terms
    .filter(({ targetSpan }) => targetSpan)
    .map(({ targetSpan: { first, after } }) => ({ first: units(first), after: units(after) }));
}

// Light the source words for a word of the translation; -1: none.
async function look(index) {
  const now = shown;
  const { attention, elements, mirrored } = now;
  now.active = index;
  for (const [place, element] of elements.entries()) element.classList.toggle('active', place === index);
  light(mirrored, []);
  if (index < 0) return;
  try {
    if (now.pivot) throw new ApiError(text('noAttention'));
    const weights = await attention.weights(index);
    if (shown !== now || now.active !== index || now.attention !== attention) return;
    const best = light(mirrored, weights);
    if (best < 0) announce(text('noAttention'));
    else announce(text('aligned', { target: elements[index].textContent, source: mirrored[best].textContent }));
  } catch (error) {
    if (shown === now) fail(error, () => look(index));
  }
}

const wordAt = (event) => shown?.elements.indexOf(event.target.closest('.word')) ?? -1;

// Keep a word lit, or no longer.
function pin(index) {
  const pinned = shown.pinned === index ? -1 : index;
  shown.pinned = pinned;
  for (const [place, element] of shown.elements.entries()) {
    element.classList.toggle('pinned', place === pinned);
    element.setAttribute('aria-pressed', String(place === pinned));
  }
  if (shown.active !== index) look(index);
  if (pinned >= 0) chooseSentence(index);
}

// Let no word be lit.
export function unpin() {
  if (!shown?.elements.length) return;
  if (shown.pinned >= 0) pin(shown.pinned);
  look(-1);
}

function moveWord(event) {
  const at = wordAt(event);
  if (at < 0) return;
  const last = shown.elements.length - 1;
  const places = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: last };
  if (event.key === 'Enter' || event.key === ' ') pin(at);
  else if (event.key in places) {
    const word = shown.elements[Math.min(last, Math.max(0, places[event.key]))];
    for (const element of shown.elements) element.tabIndex = element === word ? 0 : -1;
    word.focus();
  } else return;
  event.preventDefault();
}

// Write the text under its field, which takes its height and shows its marks; returns its words.
export function mirror() {
  const source = $('source').value;
  const found = shown?.attention && shown.source === source ? shown.attention.sourceWords : words(source, languages()[0]);
  const elements = showWords($('mirror'), source, found);
  $('mirror').append('\n');
  return elements;
}

// Table of attention

function chooseSentence(index) {
  const place = String(shown.attention.unitOf(shown.attention.targetWords[index]));
  if (place === '-1' || $('sentence').value === place) return;
  $('sentence').value = place;
  fillTable();
}

function showTable() {
  const found = shown?.attention?.units ?? [];
  const named = ({ target }, index) => `${index + 1}. ${shown.target.slice(target.first, target.after).slice(0, 60)}`;
  $('sentence').replaceChildren(...found.map((unit, index) => new Option(named(unit, index), String(index))));
  fillTable();
}

async function fillTable() {
  const attention = shown?.attention;
  $('matrix').textContent = shown?.html ? text('noAttentionMarkup') : '';
  if (!$('attention').open || !attention?.units.length) return;
  const kind = $('kind').value;
  const unit = attention.units[Number($('sentence').value)];
  const number = (id) => ($(id).value === '' ? undefined : Number($(id).value));
  try {
    if (shown.pivot) throw new ApiError(text('noAttention'));
    const asked = [attention.align(unit, kind), attention.align(unit, kind, number('layer'), number('head'))];
    const [whole, one] = await Promise.all(asked);
    if (shown?.attention !== attention) return;
    showMatrix($('matrix'), one, kind);
    fillNumbers($('layer'), whole[kind]?.layers ?? []);
    fillNumbers($('head'), whole[kind]?.heads ?? []);
  } catch (error) {
    if (shown?.attention === attention) fail(error, fillTable);
  }
}

async function copy() {
  if (navigator.clipboard) await navigator.clipboard.writeText(shown.target);
  else { // a page without TLS
    getSelection().selectAllChildren($('output'));
    document.execCommand('copy');
  }
  announce(text('copied'));
}

$('output').addEventListener('pointerover', (event) => {
  const index = wordAt(event);
  if (index >= 0 && index !== shown.active) look(index);
});
$('output').addEventListener('pointerleave', () => shown?.elements.length && look(shown.pinned));
$('output').addEventListener('focusin', (event) => wordAt(event) >= 0 && look(wordAt(event)));
$('output').addEventListener('focusout', () => shown?.elements.length && look(shown.pinned));
$('output').addEventListener('click', (event) => wordAt(event) >= 0 && pin(wordAt(event)));
$('output').addEventListener('keydown', moveWord);
$('attention').addEventListener('toggle', fillTable);
for (const id of ['sentence', 'kind', 'layer', 'head']) $(id).addEventListener('change', fillTable);
$('copy').addEventListener('click', copy);
