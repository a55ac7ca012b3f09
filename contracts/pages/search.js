// The same order of trust as on the command line: an id, our message, another library's, words.
const form = document.getElementById("search");
const query = document.getElementById("query");
const found = document.getElementById("found");
const results = document.getElementById("results");
const DULL = new Set("a an and are be expected got has in is it must not of or the to with".split(" "));

function words(text) {
  const whole = text.toLowerCase().match(/[a-z_][a-z0-9_]*|\d{2,}/g) || [];
  return [...new Set(whole.flatMap((word) => [word, ...word.split("_")]))].filter(
    (word) => word && !DULL.has(word));
}

const documents = ENTRIES.map((entry) => new Set(
  words([entry.id, entry.demand, entry.meaning, ...entry.messages, ...entry.upstream].join(" "))));
const frequency = new Map();
for (const document of documents) {
  for (const word of document) frequency.set(word, (frequency.get(word) || 0) + 1);
}

function byId(text) {
  const tags = [...text.matchAll(/- \[(\S+?)\](?=\s|$)/g)].map((m) => m[1].replace(/\[\d+\]/g, "[]"));
  const named = [...text.matchAll(/([\w.]+) refused this call/g)].map((m) => m[1].split(".").pop());
  if (tags.length) {
    return tags.flatMap((tag) => ENTRIES.filter(
      (entry) => entry.rule === tag && (!named.length || named.includes(entry.op))));
  }
  const whole = ENTRIES.filter((entry) => entry.id === text);
  return whole.length ? whole : ENTRIES.filter((entry) => entry.rule === text);
}

// Of several forms that occur in the text, those with the longest text win.
function byPattern(text, patterns) {
  const sizes = ENTRIES.map((entry) => Math.max(0, ...patterns(entry)
    .filter((pattern) => new RegExp(pattern).test(text))
    .map((pattern) => pattern.length)));
  const longest = Math.max(0, ...sizes);
  return longest ? ENTRIES.filter((_, index) => sizes[index] === longest) : [];
}

function byWords(text) {
  const wanted = words(text);
  const scored = ENTRIES.map((entry, index) => {
    const hits = wanted.filter((word) => documents[index].has(word));
    const score = hits.reduce(
      (sum, word) => sum + Math.log(1 + ENTRIES.length / frequency.get(word)), 0);
    return { entry, score };
  }).filter(({ score }) => score > 0).sort((a, b) => b.score - a.score);
  return scored.slice(0, 12).map(({ entry }) => entry);
}

function search(text) {
  const exact = [
    byId(text),
    byPattern(text, (entry) => entry.messages),
    byPattern(text, (entry) => entry.upstream).sort((a, b) => b.likely - a.likely),
  ].find((entries) => entries.length);
  return exact ? [exact, true] : [byWords(text), false];
}

function show() {
  const text = query.value.trim();
  const [entries, exact] = text ? search(text) : [[], true];
  const count = `${entries.length} ${entries.length === 1 ? "entry" : "entries"}`;
  found.textContent = !text ? "" : !entries.length ? "Nothing like this is in the catalogue."
    : exact ? `${count} for this message` : "No message is exactly this; the nearest:";
  results.replaceChildren(...entries.map((entry) => {
    const item = document.createElement("li");
    const link = document.createElement("a");
    link.href = entry.href;
    link.textContent = entry.id;
    const meaning = document.createElement("span");
    meaning.textContent = entry.meaning;
    item.append(link, " ", meaning);
    return item;
  }));
}

form.hidden = false;
form.addEventListener("submit", (event) => event.preventDefault());
query.addEventListener("input", show);
query.value = new URLSearchParams(location.search).get("q") || query.value;
show();
