// The form: models, languages, options and terms, and the request that they make.

import { $, make } from './page.js';
import { languageName, text } from './texts.js';

const AUTO = 'auto'; // the server detects the language

let models = [];
let routes = [];

// Take the models and routes of a server.
export function setModels(listed) {
  ({ models = [], routes = [] } = listed);
  fillModels();
  return models.length > 0;
}

// List the pairs of languages of a model; a model without languages has the pair of two empty codes.
function pairsOf({ languagePairs = [], sourceLanguageCodes = [], targetLanguageCodes = [], defaultLanguagePair }) {
  if (languagePairs.length) return languagePairs.map(pairOf);
  const pairs = sourceLanguageCodes.flatMap((source) => targetLanguageCodes.map((target) => [source, target]));
  if (pairs.length) return pairs;
  return [defaultLanguagePair ? pairOf(defaultLanguagePair) : ['', '']];
}

const pairOf = ({ sourceLanguageCode = '', targetLanguageCode = '' }) => [sourceLanguageCode, targetLanguageCode];

function allPairs() {
  const chosen = models.find(({ name }) => name === $('model').value);
  return chosen ? pairsOf(chosen) : [...models.flatMap(pairsOf), ...routes.map(pairOf)];
}

export function fillModels() {
  const chosen = $('model').value;
  const options = models.map(({ name }) => new Option(name, name));
  $('model').replaceChildren(new Option(text('automatic'), ''), ...options);
  if (models.some(({ name }) => name === chosen)) $('model').value = chosen;
  fillSources();
}

function fillSources() {
  const sources = new Set(allPairs().map(([source]) => source));
  fillLanguages($('source-language'), [...(sources.size > 1 ? [AUTO] : []), ...sources]);
  fillTargets();
}

function fillTargets() {
  const source = $('source-language').value;
  const fitting = allPairs().filter(([from]) => from === source || source === AUTO);
  fillLanguages($('target-language'), fitting.map(([, target]) => target));
  const [from, to] = languages();
  $('beam').placeholder = defaultBeam();
  $('swap').disabled = !allPairs().some(([one, other]) => one === to && other === from);
  $('source').lang = from === AUTO ? '' : from;
  $('output').lang = to;
}

// Return the beam size of the model that the server would choose.
function defaultBeam() {
  const pair = String(languages());
  const named = models.find(({ name }) => name === $('model').value);
  const first = named ?? models.find((model) => pairsOf(model).some((one) => String(one) === pair));
  return String(first?.defaultOptions?.beamSize ?? '');
}

function nameOf(code) {
  if (code === AUTO) return text('detect');
  return code ? languageName(code) : text('default');
}

// Fill a selection of languages, sorted by their names, and keep the chosen one.
function fillLanguages(select, codes) {
  const chosen = select.value;
  const named = [...new Set(codes)].map((code) => [nameOf(code), code]);
  named.sort(([one, code], [other, second]) => (second === AUTO) - (code === AUTO) || one.localeCompare(other));
  select.replaceChildren(...named.map(([name, code]) => new Option(name, code)));
  if (codes.includes(chosen)) select.value = chosen;
}

// Return the codes of both languages.
export const languages = () => [$('source-language').value, $('target-language').value];

export function swapLanguages() {
  const [from, to] = languages();
  $('source-language').value = to;
  fillTargets();
  $('target-language').value = from;
  fillTargets();
}

// Make the fields of a request, without the text.
export function request() {
  const [sourceLanguageCode, targetLanguageCode] = languages();
  const count = Math.max(1, Number($('count').value) || 1);
  const beam = Math.max(Number($('beam').value) || 0, count > 1 ? count : 0);
  const entries = terms();
  return {
    model: $('model').value,
    sourceLanguageCode,
    targetLanguageCode,
    options: { beamSize: beam || undefined, numHypotheses: count > 1 ? count : undefined },
    splitSentences: count === 1, // several translations are of one whole text
    copyUnreadable: count === 1,
    keepPlaceholders: true,
    glossary: entries.length ? { entries } : undefined,
  };
}

// List the terms that have both fields.
function terms() {
  return [...$('term-list').children]
    .map((row) => [...row.querySelectorAll('input')].map((input) => input.value.trim()))
    .filter(([source, targets]) => source && targets)
    .map(([source, targets]) => ({ source, targets: targets.split('|').map((one) => one.trim()).filter(Boolean) }));
}

function addTerm() {
  const row = make('li');
  row.className = 'term';
  for (const name of ['source', 'target']) {
    const field = make('label');
    field.className = 'field';
    const label = make('span', text(name));
    label.dataset.text = name;
    field.append(label, make('input'));
    row.append(field);
  }
  const remove = make('button', '×');
  remove.dataset.label = 'remove';
  remove.setAttribute('aria-label', text('remove'));
  remove.type = 'button';
  remove.className = 'quiet icon';
  remove.addEventListener('click', () => {
    row.remove();
    $('add-term').focus();
  });
  row.append(remove);
  $('term-list').append(row);
  row.querySelector('input').focus();
}

$('source-language').addEventListener('change', fillTargets);
$('target-language').addEventListener('change', fillTargets);
$('model').addEventListener('change', fillSources);
$('add-term').addEventListener('click', addTerm);
$('terms').addEventListener('toggle', () => $('terms').open && !$('term-list').children.length && addTerm());
