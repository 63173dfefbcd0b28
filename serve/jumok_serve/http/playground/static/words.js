// Words of texts, the places of tokens in them, and the attention between words.

const BYTE = /^<0x([0-9A-F]{2})>$/;
const encoder = new TextEncoder();

// Split a text into words and punctuation, each with its place; white space is left out.
export function words(text, language) {
  const found = [];
  for (const { segment, index } of segments(text, language, 'word')) {
    if (segment.trim()) found.push({ first: index, after: index + segment.length });
  }
  return found;
}

// Pair the sentences of a text with those of its translation, or its lines, or all of it.
export function units(source, target, languages) {
  const [sources, targets] = [lines(source), lines(target)];
  if (sources.length !== targets.length) return [whole(source, target)];
  const found = sources.flatMap((line, index) => {
    const parts = [sentences(source, line, languages[0]), sentences(target, targets[index], languages[1])];
    const paired = parts[0].length === parts[1].length ? parts : [[line], [targets[index]]];
    return paired[0].map((one, place) => ({ source: one, target: paired[1][place] }));
  });
  const full = ({ first, after }, text) => text.slice(first, after).trim();
  return found.filter((unit) => full(unit.source, source) && full(unit.target, target));
}

function whole(source, target) {
  return { source: { first: 0, after: source.length }, target: { first: 0, after: target.length } };
}

function lines(text) {
  let first = 0;
  return text.split('\n').map((line) => {
    const place = { first, after: first + line.length };
    first = place.after + 1;
    return place;
  });
}

function sentences(text, line, language) {
  const content = text.slice(line.first, line.after);
  return segments(content, language, 'sentence')
    .filter(({ segment }) => segment.trim())
    .map(({ segment, index }) => ({ first: line.first + index, after: line.first + index + segment.trimEnd().length }));
}

function segments(text, language, granularity) {
  let locale = [];
  try {
    locale = Intl.getCanonicalLocales((language ?? '').replaceAll('_', '-'));
  } catch {
    // a code of a model's own: the browser's rules do
  }
  return [...new Intl.Segmenter(locale, { granularity }).segment(text)];
}

// Find the places of tokens in their text. Tokens that are not in it as they are share the place between their
// neighbours; special tokens have none.
export function places(tokens, text) {
  const contents = tokenBytes(tokens);
  const found = tokens.map(() => null);
  let position = 0;
  let lost = [];
  const settle = (first, after) => {
    for (const index of lost) found[index] = { first, after };
    lost = [];
  };
  for (const group of characters(contents, tokens)) {
    const content = group.text.trim();
    const first = content ? find(content, text, position) : -1;
    if (first < 0) {
      lost.push(...group.indices);
      continue;
    }
    settle(position, first);
    for (const index of group.indices) found[index] = { first, after: first + content.length };
    position = first + content.length;
  }
  settle(position, text.length);
  return found;
}

const FAR = 24; // characters that tokens may leave out

function find(content, text, position) {
  const near = text.slice(position, position + FAR + content.length);
  const exact = near.indexOf(content);
  const folded = exact >= 0 ? exact : near.toLowerCase().indexOf(content.toLowerCase());
  return folded < 0 ? -1 : position + folded;
}

// Group tokens that share a character.
function* characters(contents, tokens) {
  let indices = [];
  let bytes = [];
  for (const [index, content] of contents.entries()) {
    if (tokens[index].special) continue;
    indices.push(index);
    bytes.push(...content);
    let decoded;
    try {
      decoded = new TextDecoder('utf-8', { fatal: true }).decode(new Uint8Array(bytes));
    } catch {
      if (bytes.length < 8) continue;
      decoded = '';
    }
    yield { indices, text: decoded };
    [indices, bytes] = [[], []];
  }
}

// Encode tokens without the marks of their tokenizer.
function tokenBytes(tokens) {
  const pieces = tokens.filter((token) => !token.special).map((token) => token.text ?? '');
  const has = (test) => pieces.some(test);
  let bare = (piece) => piece;
  if (has((piece) => piece.startsWith('▁'))) bare = (piece) => piece.replaceAll('▁', ' ');
  else if (has((piece) => piece.startsWith('Ġ'))) return tokens.map((token) => byteLevel(token.text ?? ''));
  else if (has((piece) => piece.startsWith('##'))) bare = (piece) => piece.replace(/^##/, '');
  else bare = (piece) => piece.replace(/(<\/w>|@@|▁)$/, '');
  return tokens.map(({ text: piece = '' }) => {
    const byte = BYTE.exec(piece);
    return byte ? [parseInt(byte[1], 16)] : [...encoder.encode(bare(piece))];
  });
}

let byteTable = null;

// GPT-2 maps printable bytes to themselves, and others from U+0100 on.
function byteLevel(piece) {
  if (byteTable === null) {
    byteTable = new Map();
    let next = 256;
    for (let byte = 0; byte < 256; byte += 1) {
      const printable = (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
      byteTable.set(String.fromCharCode(printable ? byte : next), byte);
      if (!printable) next += 1;
    }
  }
  return [...piece].flatMap((one) => (byteTable.has(one) ? [byteTable.get(one)] : [...encoder.encode(one)]));
}

// Weigh the words of a text for one word of its translation, from the weights between tokens, row by row.
// Rows of the word's tokens are averaged; a word has the sum of its tokens' columns.
export function wordWeights({ weights, sourcePlaces, targetPlaces }, word, sourceWords) {
  const columns = sourcePlaces.length;
  const rows = targetPlaces.flatMap((place, index) => (place && overlap(place, word) > 0 ? [index] : []));
  return sourceWords.map((one) => {
    let sum = 0;
    for (const [column, place] of sourcePlaces.entries()) {
      if (!place || place.after === place.first) continue;
      const share = overlap(place, one) / (place.after - place.first);
      if (share > 0) for (const row of rows) sum += weights[row * columns + column] * share;
    }
    return rows.length ? sum / rows.length : 0;
  });
}

function overlap(one, other) {
  return Math.min(one.after, other.after) - Math.max(one.first, other.first);
}
