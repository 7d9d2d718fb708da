"use strict";
// The contents of the page: a line that stays at the top and leads to each section.

const sections = [...document.querySelectorAll("main > section")];

async function goTo(section) {
  await drawBefore(section);
  section.scrollIntoView({ block: "start" });
  const heading = section.querySelector("h2");
  heading.tabIndex = -1;
  heading.focus({ preventScroll: true });
}

// Sections that the chosen setting does not have are not in the list.
function fillContents() {
  const there = sections.filter((section) => !section.hidden);
  $("contents").hidden = there.length < 3;
  const items = [...$("contents").querySelectorAll("button")];
  if (items.length === there.length && items.every((item, i) => item.dataset.of === there[i].id)) return;
  $("contents").firstElementChild.replaceChildren(
    ...there.map((section) => {
      const item = make("li"),
        button = make("button", section.dataset.name, { type: "button", "data-of": section.id });
      button.addEventListener("click", () => goTo(section));
      item.append(button);
      return item;
    }),
  );
}
