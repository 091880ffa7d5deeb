// The strings of the scripts are English; a page of another language carries their translations, by the English template with
// numbered values: translate`${count} of ${name}` is "{0} of {1}".

const TRANSLATIONS = JSON.parse(document.getElementById("translations")?.textContent ?? "null");
const translatedTemplates = new WeakMap();

// The text and the values of a template, in the order of the language.
function translatedParts(strings, values) {
  if (!TRANSLATIONS) return strings.flatMap((part, at) => (at ? [values[at - 1], part] : [part]));
  if (!translatedTemplates.has(strings)) {
    const template = strings.reduce((before, part, at) => `${before}{${at - 1}}${part}`);
    translatedTemplates.set(strings, (TRANSLATIONS[template] ?? template).split(/\{(\d+)\}/));
  }
  return translatedTemplates.get(strings).map((part, at) => (at % 2 ? values[part] : part));
}

function translate(strings, ...values) {
  return translatedParts(strings, values).reduce(joinTexts, "");
}

// Templates have spaces around values for numbers and Latin letters; between Chinese characters there is none.
const HAN = /[\u3400-\u9fff]/;

function joinTexts(text, part) {
  const [before, after] = [text.trimEnd(), `${part}`.trimStart()];
  return TRANSLATIONS && HAN.test(before.at(-1)) && HAN.test(after[0]) ? before + after : `${text}${part}`;
}

const BETWEEN_SENTENCES = TRANSLATIONS ? "" : " ";

// Sentences behind one another, those that are not empty: Chinese has no space between them.
function joinSentences(...sentences) {
  return sentences.filter(Boolean).join(BETWEEN_SENTENCES);
}

// For values that are nodes, or lists of nodes. Texts beside one another are one text.
function translateNodes(strings, ...values) {
  return translatedParts(strings, values).flat().filter((part) => part !== "").reduce(joinNode, []);
}

function joinNode(nodes, part) {
  const isText = nodes.length && [nodes.at(-1), part].every((node) => typeof node === "string");
  return isText ? [...nodes.slice(0, -1), joinTexts(nodes.at(-1), part)] : [...nodes, part];
}

// For example plural`${count} heads`, of which English drops the last letter for one.
function plural(strings, ...values) {
  const text = translate(strings, ...values);
  return TRANSLATIONS || String(values[0]) !== "1" ? text : text.slice(0, -1);
}
