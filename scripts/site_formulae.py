"""Convert the site's formulae to MathML, which browsers draw themselves, and keep words of commands on one line."""

import html
import re
from typing import Any

from latex2mathml.converter import convert

# What pymdownx.arithmatex makes of $...$ and of $$...$$.
INLINE = re.compile(r'<span class="arithmatex">\\\((.+?)\\\)</span>', re.DOTALL)
DISPLAY = re.compile(r'<div class="arithmatex">\s*\\\[(.+?)\\\]\s*</div>', re.DOTALL)
BLOCK = re.compile(r"<pre.*?</pre>", re.DOTALL)
CODE = re.compile(r"(<code>)([^<]+)(</code>)")
MAX_LETTERS = 40  # of a word that a phone can show in one line


def on_page_content(text: str, **_: Any) -> str:
    """Return a page's HTML with formulae and code replaced; mkdocs calls this."""
    text = DISPLAY.sub(lambda match: convert(html.unescape(match[1]), display="block"), text)
    text = INLINE.sub(lambda match: convert(html.unescape(match[1])), text)
    blocks = BLOCK.findall(text)
    between = [CODE.sub(keep_words, part) for part in BLOCK.split(text)]
    return "".join(part + block for part, block in zip(between, [*blocks, ""], strict=True))


def keep_words(match: re.Match[str]) -> str:
    """Return inline code whose words do not break; a word longer than a phone's line may break after a sign."""
    words = [
        f'<span class="word">{word}</span>'
        if len(html.unescape(word)) <= MAX_LETTERS
        else re.sub(r"([/=,&;]|_(?=\w))(?=.)", r"\1<wbr>", word)
        for word in match[2].split(" ")
    ]
    return f"{match[1]}{' '.join(words)}{match[3]}"
