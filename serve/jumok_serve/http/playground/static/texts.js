// Texts of the interface, in each of its languages.

const TEXTS = {
  en: {
    add: 'Add', addTerm: 'Add a term', aligned: '{target} looks at {source}', attention: 'Attention',
    attentionHint: 'Point at a word of the translation, or move over its words with the arrow keys: the words of the text that the model looked at light up. The table has each token.',
    automatic: 'Automatic', beam: 'Beam size', cancel: 'Cancel', copied: 'Copied', copy: 'Copy', count: 'Translations',
    cross: 'Translation to text', cut: 'Too long for the model, so it was cut: {text}', dark: 'Dark mode',
    decoder: 'Within the translation', default: 'default', detect: 'Detect language', detected: 'The text is in this language: {name}', download: 'Save {name}', done: 'Translated', encoder: 'Within the text', format: 'Format',
    file: 'File', files: 'Files', filesHint: 'These files keep their form:', from: 'From', head: 'Head', hint: 'Ctrl+Enter translates', hypotheses: 'Translations, best first', interface: 'Language of this page',
    key: 'API key', keyForbidden: 'This key may not translate. Enter another one.', keyHint: 'The key stays in this tab and goes to this server only. Leave it empty to forget it.',
    keyNeeded: 'This server needs an API key.', keyWrong: 'The server does not know this key.', kind: 'Attention of', layer: 'Layer', mean: 'Mean of all', measures: '{tokens} tokens, {time} ms, {model}', model: 'Model',
    more: 'The same translations are there for programs:', noAttention: 'No attention is known for this translation.', noAttentionMarkup: 'There is no attention for HTML.',
    noModel: 'This server has no model yet.', notWritten: 'Not written: {text}', options: 'Options', plain: 'Text', problem: 'Line {line} stays as it is: {text}', progress: 'Progress of the file', refused: 'The server refuses this request.', remove: 'Remove',
    score: 'Score', sentence: 'Sentence', source: 'Term', stop: 'Stop', stopped: 'Stopped', swap: 'Swap languages', target: 'Its translation', terms: 'Terms',
    termsHint: 'Where the text has a term, the translation has its translation. Separate alternatives by |.',
    text: 'Text', throttled: 'Too many requests. Try again in {seconds} s.', timeout: 'The server took too long.', to: 'To', tooLong: 'The text is too long for one request.', translate: 'Translate', translateFile: 'Translate the file', translation: 'Translation',
    truncated: 'The text was too long for the model, and its end is missing.', unavailable: 'The server cannot translate at the moment. Try again in a while.', unknown: 'Parts that the model does not know: {count}', unreachable: 'The server cannot be reached.', use: 'Use', fault: 'The server failed.',
  },
  ko: {
    add: '추가', addTerm: '용어 추가', aligned: '{target}: {source} 쪽을 봅니다', attention: '어텐션',
    attentionHint: '번역문의 단어를 가리키거나 화살표 키로 옮겨 다니면, 모델이 본 원문의 단어가 밝아집니다. 표에는 모든 토큰이 있습니다.',
    automatic: '자동', beam: '빔 크기', cancel: '취소', copied: '복사했습니다', copy: '복사', count: '번역 수',
    cross: '번역문에서 원문으로', cut: '모델에 너무 길어서 나눈 문장: {text}', dark: '어두운 화면',
    decoder: '번역문 안에서', default: '기본값', detect: '언어 감지', detected: '감지한 원문 언어: {name}', download: '{name} 저장', done: '번역했습니다', encoder: '원문 안에서', format: '형식',
    file: '파일', files: '파일 번역', filesHint: '다음 파일은 형식을 그대로 둡니다:', from: '원문 언어', head: '헤드', hint: 'Ctrl+Enter로 번역', hypotheses: '번역 후보(좋은 순서)', interface: '이 페이지의 언어',
    key: 'API 키', keyForbidden: '이 키로는 번역할 수 없습니다. 다른 키를 입력하세요.', keyHint: '키는 이 탭에만 남고 이 서버에만 보냅니다. 비워 두면 지워집니다.',
    keyNeeded: '이 서버에는 API 키가 필요합니다.', keyWrong: '서버가 모르는 키입니다.', kind: '어텐션 종류', layer: '층', mean: '전체 평균', measures: '토큰 {tokens}개, {time} ms, {model}', model: '모델',
    more: '같은 번역을 프로그램에서도 쓸 수 있습니다:', noAttention: '이 번역의 어텐션은 알 수 없습니다.', noAttentionMarkup: 'HTML에는 어텐션이 없습니다.',
    noModel: '아직 이 서버에 모델이 없습니다.', notWritten: '쓰지 못한 용어: {text}', options: '설정', plain: '일반 텍스트', problem: '{line}번째 줄은 그대로 둡니다: {text}', progress: '파일 번역 진행', refused: '서버가 이 요청을 거절했습니다.', remove: '삭제',
    score: '점수', sentence: '문장', source: '용어', stop: '중지', stopped: '중지했습니다', swap: '언어 바꾸기', target: '용어의 번역', terms: '용어',
    termsHint: '원문에 용어가 있으면 번역문에 그 번역을 씁니다. 여러 번역은 |로 나눕니다.',
    text: '원문', throttled: '요청이 너무 많습니다. {seconds}초 뒤에 다시 시도하세요.', timeout: '서버의 응답이 너무 늦습니다.', to: '번역 언어', tooLong: '한 번에 보내기에는 글이 너무 깁니다.', translate: '번역하기', translateFile: '파일 번역하기', translation: '번역문',
    truncated: '글이 모델에 너무 길어서 끝부분이 빠졌습니다.', unavailable: '지금은 번역할 수 없습니다. 잠시 뒤에 다시 시도하세요.', unknown: '모델이 모르는 부분: {count}개', unreachable: '서버에 연결할 수 없습니다.', use: '사용', fault: '서버에 오류가 났습니다.',
  },
};

let language = 'en';

// Return the text of a name; values in braces are replaced.
export function text(name, values = {}) {
  return TEXTS[language][name].replace(/\{(\w+)\}/g, (_, key) => values[key]);
}

// Languages of the interface.
export const INTERFACES = Object.keys(TEXTS);

// Return the name of a language in another one, that of the interface by default; an unknown language is its code.
export function languageName(code, spoken = language) {
  try {
    return new Intl.DisplayNames([spoken], { type: 'language' }).of(code.replaceAll('_', '-')) ?? code;
  } catch {
    return code;
  }
}

// Choose the interface's language, and write its texts into the page.
export function speak(chosen) {
  language = chosen in TEXTS ? chosen : 'en';
  document.documentElement.lang = language;
  for (const element of document.querySelectorAll('[data-text]')) {
    element.textContent = text(element.dataset.text);
  }
  for (const element of document.querySelectorAll('[data-label]')) {
    element.setAttribute('aria-label', text(element.dataset.label));
    if (element.tagName === 'BUTTON') element.title = text(element.dataset.label);
  }
  return language;
}
