// Pages that are read from a folder have no search: a browser starts no worker there.
if (location.protocol === "file:") document.body.classList.add("from-folder");
