// A tapped token says about itself at the foot of the page what its tooltip says to a mouse.
(() => {
  const about = document.getElementById("about");
  let chosen = null;
  document.addEventListener("click", (event) => {
    const token = event.target.closest(".tokens .t");
    chosen?.classList.remove("chosen");
    chosen = token;
    about.hidden = !token;
    if (token) {
      token.classList.add("chosen");
      about.textContent = token.title;
    }
  });
})();
