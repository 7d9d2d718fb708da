"use strict";
// Unpacks what the page carries compressed: its data, then the scripts, which run in their order. The page's policy has the hash
// of each, as unpacked.

let data = null;

async function textOf(part) {
  const letters = atob(part.textContent),
    bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i); // a call for each would take ten times as long
  part.remove(); // the page needs it once
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).text();
}

async function unpackPage() {
  const parts = [...document.querySelectorAll("script[type='application/zlib']")];
  const [text, ...scripts] = await Promise.all(parts.map(textOf));
  data = JSON.parse(text);
  for (const own of scripts) document.body.append(Object.assign(document.createElement("script"), { textContent: own }));
}

if ("DecompressionStream" in window) unpackPage();
else {
  const note = document.getElementById("unfitting");
  note.textContent = "This browser cannot unpack the figures: it is older than 2023. The tables below hold what they show.";
  note.hidden = false;
}
