// Calls a jumok server with nothing but its .proto files, and writes what it answered as one JSON object.
//
//     node client.js ADDRESS TEXT FOLDER...    the folders hold jumok_proto/ and google/rpc/

'use strict';

const fs = require('fs');
const path = require('path');
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');
const protobuf = require('protobufjs');

const [address, text, ...folders] = process.argv.slice(2);

const definition = loader.loadSync(['jumok_proto/v1/translation.proto', 'jumok_proto/v1/model.proto'], {
  includeDirs: folders,
  enums: String,
  longs: String,
  defaults: true,
});
const jumok = grpc.loadPackageDefinition(definition).jumok.v1;

const details = new protobuf.Root();
details.resolvePath = (_, target) =>
  folders.map((folder) => path.join(folder, target)).find(fs.existsSync) ?? protobuf.util.path.resolve(_, target);
details.loadSync(['google/rpc/status.proto', 'google/rpc/error_details.proto']);

function ask(client, method, request) {
  return new Promise((resolve, reject) => {
    client[method](request, (error, answer) => (error ? reject(error) : resolve(answer)));
  });
}

async function readAll(call) {
  const messages = [];
  for await (const message of call) messages.push(message);
  return messages;
}

// The status of a call that must fail, and every detail of it by the name of its type.
async function failure(promise) {
  try {
    await promise;
  } catch (error) {
    const packed = error.metadata.get('grpc-status-details-bin')[0];
    const status = details.lookupType('google.rpc.Status').decode(packed);
    const found = { code: grpc.status[error.code], message: error.details };
    for (const { type_url: url, value } of status.details) {
      const type = details.lookupType(url.split('/').pop());
      found[type.name] = type.toObject(type.decode(value), { longs: Number });
    }
    return found;
  }
  throw new Error('the call did not fail');
}

async function main() {
  const credentials = grpc.credentials.createInsecure();
  const translation = new jumok.TranslationService(address, credentials);
  const models = new jumok.ModelService(address, credentials);
  const found = {};

  found.models = (await ask(models, 'ListModels', {})).models;
  found.translated = await ask(translation, 'TranslateText', { contents: [text], options: { beamSize: 2 } });
  found.streamed = await readAll(translation.StreamTranslateText({ content: text, options: { beamSize: 2 } }));

  const corpus = translation.TranslateCorpus();
  corpus.write({ settings: { options: { beamSize: 2 } } });
  corpus.write({ items: [{ id: 7, content: text }, { id: 8, content: text, targetPrefix: '\u0000' }] });
  corpus.end();
  found.corpus = (await readAll(corpus)).flatMap((message) => message.results);

  found.badOption = await failure(
    ask(translation, 'TranslateText', { contents: [text], options: { beamSize: 1000 } }),
  );
  found.unknownModel = await failure(ask(translation, 'TranslateText', { model: 'nothing', contents: [text] }));
  found.tooOften = await failure(ask(translation, 'TranslateText', { contents: [text] }));

  console.log(JSON.stringify(found));
  translation.close();
  models.close();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
