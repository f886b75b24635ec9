"""Formulae of the site become MathML, which browsers draw by themselves, and its commands do not break in a word."""

import html
import re
from typing import Any

from latex2mathml.converter import convert

# What pymdownx.arithmatex makes of $...$ and of $$...$$.
INLINE = re.compile(r'<span class="arithmatex">\\\((.+?)\\\)</span>', re.DOTALL)
DISPLAY = re.compile(r'<div class="arithmatex">\s*\\\[(.+?)\\\]\s*</div>', re.DOTALL)
BLOCK = re.compile(r"<pre.*?</pre>", re.DOTALL)
CODE = re.compile(r"(<code>)([^<]+)(</code>)")
LONGEST = 40  # letters of a word that a phone can show in one line


def on_page_content(text: str, **_: Any) -> str:
    """mkdocs calls this with a page's HTML."""
    text = DISPLAY.sub(lambda found: convert(html.unescape(found[1]), display="block"), text)
    text = INLINE.sub(lambda found: convert(html.unescape(found[1])), text)
    blocks = BLOCK.findall(text)
    between = [CODE.sub(keep_words, part) for part in BLOCK.split(text)]
    return "".join(part + block for part, block in zip(between, [*blocks, ""], strict=True))


def keep_words(found: re.Match[str]) -> str:
    """Code in running text, whose words do not break; one that is longer than a phone's line does so behind a sign."""
    words = [
        f'<span class="word">{word}</span>'
        if len(html.unescape(word)) <= LONGEST
        else re.sub(r"([/=,&;]|_(?=\w))(?=.)", r"\1<wbr>", word)
        for word in found[2].split(" ")
    ]
    return f"{found[1]}{' '.join(words)}{found[3]}"
