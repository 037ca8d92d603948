// Escape closes a definition without moving the pointer or the focus (WCAG 1.4.13), in the page and in live components.
(() => {
  if (window.specvizDismisses) return; // the script runs again whenever its element is drawn
  window.specvizDismisses = true;

  function openTerms(root) {
    const inside = [...root.querySelectorAll("*")].flatMap((node) => (node.shadowRoot ? openTerms(node.shadowRoot) : []));
    return [...root.querySelectorAll(".term:is(:hover, :focus)"), ...inside];
  }

  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    for (const term of openTerms(document)) {
      term.classList.add("dismissed");
      for (const left of ["pointerleave", "blur"]) {
        term.addEventListener(left, () => term.classList.remove("dismissed"), { once: true });
      }
    }
  }, true);
})();
