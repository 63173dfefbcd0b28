// Translate with the clients of two services, and print all results as JSON.
const deepl = require('deepl-node');
const { translate } = require('libretranslate');

async function errorOf(call) {
    try {
        await call();
        return null;
    } catch (error) {
        return { kind: error.constructor.name, message: String(error.message) };
    }
}

async function main(url, key, text) {
    const client = new deepl.DeepLClient(key, { serverUrl: url, maxRetries: 0 });
    const stranger = new deepl.DeepLClient('wrong', { serverUrl: url, maxRetries: 0 });
    const found = {
        libretranslate: await translate({ query: text, source: 'en', target: 'de', apiurl: url }).catch(String),
        translated: await client.translateText([text, 'a dog'], 'en', 'de', { splitSentences: 'off' }),
        sources: await client.getSourceLanguages(),
        targets: await client.getTargetLanguages(),
        usage: await client.getUsage(),
        badLanguage: await errorOf(() => client.translateText(text, 'en', 'fr')),
        wrongKey: await errorOf(() => stranger.getUsage()),
        tooOften: null,
    };
    while (found.tooOften === null) {
        found.tooOften = await errorOf(() => client.getUsage());
    }
    console.log(JSON.stringify(found));
}

main(...process.argv.slice(2)).catch((error) => {
    console.error(error);
    process.exit(1);
});
