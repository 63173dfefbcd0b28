// Attention of a translation: lit words of its text, and a table of tokens.

import { call } from './api.js';
import { text } from './texts.js';
import { places, units, wordWeights, words } from './words.js';

const FAINT = 0.12; // words with a smaller share of the largest weight stay dark
const TINTED = 0.8; // strength of the colour of the largest weight

// Show a text as words; returns the element of each word.
export function showWords(element, shown, found, make = () => document.createElement('span')) {
  const parts = [];
  let position = 0;
  const elements = found.map((place) => {
    const one = make(place);
    one.classList.add('word');
    one.textContent = shown.slice(place.first, place.after);
    parts.push(shown.slice(position, place.first), one);
    position = place.after;
    return one;
  });
  element.replaceChildren(...parts, shown.slice(position));
  return elements;
}

// The attention of one translation, which the server is asked for when it is first looked at.
export class Attention {
  constructor({ source, target, languages, model }) {
    Object.assign(this, { source, target, languages, model });
    this.units = units(source, target, languages);
    this.sourceWords = words(source, languages[0]);
    this.targetWords = words(target, languages[1]);
    this.asked = new Map();
  }

  // Return the weights of the source words for a target word.
  async weights(index) {
    const word = this.targetWords[index];
    const place = this.unitOf(word);
    if (place < 0) return [];
    const unit = this.units[place];
    const { sourceTokens = [], targetTokens = [], cross } = await this.align(unit, 'cross');
    const parts = {
      weights: cross?.mean?.weights ?? [],
      sourcePlaces: shifted(places(sourceTokens, part(this.source, unit.source)), unit.source.first),
      targetPlaces: shifted(places(targetTokens, part(this.target, unit.target)), unit.target.first),
    };
    return wordWeights(parts, word, this.sourceWords);
  }

  // Return the place of a target word's unit, or -1.
  unitOf(word) {
    return this.units.findIndex(({ target }) => target.first <= word.first && word.first < target.after);
  }

  // Ask for the attention of a unit, of one layer and head or as the mean of all.
  async align(unit, kind, layer, head) {
    const [sourceLanguageCode, targetLanguageCode] = this.languages;
    const request = {
      model: this.model,
      contents: [part(this.source, unit.source)],
      targets: [part(this.target, unit.target)],
      kinds: [`ATTENTION_KIND_${kind.toUpperCase()}`],
      layer,
      head,
      truncate: true,
      sourceLanguageCode,
      targetLanguageCode,
    };
    const name = JSON.stringify(request);
    if (!this.asked.has(name)) {
      const answer = call('v1/text:align', request);
      this.asked.set(name, answer);
      answer.catch(() => this.asked.delete(name));
    }
    return (await this.asked.get(name)).alignments[0];
  }
}

const part = (whole, { first, after }) => whole.slice(first, after);
const shifted = (found, by) => found.map((one) => one && { first: one.first + by, after: one.after + by });

// Light words by their weights; returns the place of the word with most, or -1.
export function light(elements, weights) {
  const most = Math.max(0, ...weights);
  const best = most > 0 ? weights.indexOf(most) : -1;
  for (const [index, element] of elements.entries()) {
    const share = most > 0 ? (weights[index] ?? 0) / most : 0;
    element.classList.toggle('lit', share >= FAINT);
    element.classList.toggle('aligned', index === best);
    element.style.setProperty('--weight', (share * TINTED).toFixed(3));
  }
  return best;
}

// Show weights between tokens as a table.
export function showMatrix(element, alignment, kind) {
  const { sourceTokens = [], targetTokens = [], decoderTokens = [] } = alignment;
  const sides = { cross: [targetTokens, sourceTokens], encoder: [sourceTokens, sourceTokens], decoder: [targetTokens, decoderTokens] };
  const [rows, columns] = sides[kind];
  const weights = alignment[kind]?.mean?.weights ?? [];
  const table = document.createElement('table');
  const first = table.createTHead().insertRow();
  first.insertCell();
  first.append(...columns.map((token) => header(token, 'col')));
  const body = table.createTBody();
  for (const [row, token] of rows.entries()) {
    const line = body.insertRow();
    line.append(header(token, 'row'));
    for (const column of columns.keys()) {
      const weight = weights[row * columns.length + column] ?? 0;
      const cell = line.insertCell();
      cell.textContent = weight.toFixed(2);
      cell.style.setProperty('--weight', (weight * TINTED).toFixed(3));
    }
  }
  element.replaceChildren(table);
}

function header({ text: spelled = '', special = false }, scope) {
  const cell = document.createElement('th');
  cell.scope = scope;
  cell.textContent = spelled;
  cell.classList.toggle('special', special);
  return cell;
}

// Fill a selection of layers or heads, and keep the chosen one.
export function fillNumbers(select, numbers) {
  const chosen = select.value;
  const options = numbers.map((number) => new Option(String(number), String(number)));
  select.replaceChildren(new Option(text('mean'), ''), ...options);
  select.value = numbers.map(String).includes(chosen) ? chosen : '';
}
