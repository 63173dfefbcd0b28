// Translates sentences with Marian itself, compiled to WebAssembly: the package @browsermt/bergamot-translator.
// Reads {package, model, vocabularies, shortlist, config, sentences} from standard input; writes a list of texts.
const {Worker} = require("node:worker_threads");
const {readFileSync} = require("node:fs");

const asked = JSON.parse(readFileSync(0, "utf-8"));
const bytes = (path) => {
  const content = readFileSync(path);
  return content.buffer.slice(content.byteOffset, content.byteOffset + content.byteLength);
};

const worker = new Worker(`${asked.package}/translator-worker.js`);
const pending = new Map();
let serial = 0;
const call = (name, ...args) =>
  new Promise((accept, reject) => {
    pending.set(++serial, {accept, reject});
    worker.postMessage({id: serial, name, args});
  });
worker.on("message", ({id, result, error}) => {
  const {accept, reject} = pending.get(id);
  return error === undefined ? accept(result) : reject(new Error(error.message));
});

(async () => {
  const pair = {from: "xx", to: "yy"};
  await call("initialize", {cacheSize: 0, useNativeIntGemm: false});
  await call("loadTranslationModel", pair, {
    model: bytes(asked.model),
    shortlist: asked.shortlist ? bytes(asked.shortlist) : new ArrayBuffer(0),
    vocabs: asked.vocabularies.map(bytes),
    config: asked.config,
  });
  const found = [];
  for (const text of asked.sentences) {
    const texts = [{text, html: false, qualityScores: false}];
    const [{target}] = await call("translate", {models: [pair], texts});
    found.push(target.text);
  }
  console.log(JSON.stringify(found));
  await worker.terminate();
})().catch((error) => {
  console.error(error);
  process.exit(1);
});
