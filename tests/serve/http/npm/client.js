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

// Make, use, change and delete a glossary in both versions of the API; without a store there is none.
async function glossaries(client, text) {
    const entries = new deepl.GlossaryEntries({ entries: { shirt: 'Hemdchen' } });
    const made = await client.createGlossary('one', 'en', 'de', entries).catch((error) => String(error.message));
    if (typeof made === 'string') {
        return made;
    }
    const used = await client.translateText(text, 'en', 'de', { glossary: made });
    const listed = await client.listGlossaries();
    const read = await client.getGlossaryEntries(made);
    await client.deleteGlossary(made);
    const several = await client.createMultilingualGlossary('several', [
        { sourceLangCode: 'en', targetLangCode: 'de', entries },
    ]);
    const more = new deepl.GlossaryEntries({ entries: { man: 'Kerl' } });
    const dictionary = { sourceLangCode: 'en', targetLangCode: 'de', entries: more };
    const changed = await client.updateMultilingualGlossaryDictionary(several, dictionary);
    const both = await client.getMultilingualGlossaryDictionaryEntries(several, 'en', 'de');
    const replaced = await client.replaceMultilingualGlossaryDictionary(several, dictionary);
    await client.deleteMultilingualGlossary(several);
    return {
        made,
        used,
        listed,
        read: read.entries(),
        changed,
        both: both.entries.entries(),
        replaced,
        missing: await errorOf(() => client.getGlossary(made.glossaryId)),
        left: await client.listMultilingualGlossaries(),
    };
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
        glossaries: await glossaries(client, text),
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
