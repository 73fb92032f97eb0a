"""The parts of the paper that a claim can stand in."""

import re

PARTS = {  # as the page's filter names them, in the paper's order
    "1": "1 Introduction",
    "3": "3 The objective and its theory",
    "4.1": "4.1 Bidirectional lock",
    "4.2": "4.2 Chain MDP",
    "5": "5 Deep rewards",
    "5.1": "5.1 MiniGrid",
    "5.2": "5.2 DeepMind Control",
    "5.3": "5.3 Dreamer",
    "6": "6 Related work",
    "": "elsewhere",
}
_FIGURES = {1: "1", 3: "4.1", 4: "4.1", 5: "4.1", 6: "4.2", 7: "5.1", 8: "5.2", 9: "5.2", 10: "5.3"}


def part(where: str) -> str:
    """The part that a place such as "Fig. 3, Sec. 4.1" is in; the section counts before the figure.

    >>> part("Fig. 3, Sec. 4.1"), part("Theorem 1"), part("Fig. 1"), part("Sec. 3.2, App. A"), part("a letter")
    ('4.1', '3', '1', '3', '')
    """
    if found := re.search(r"Sec\. (\d+)(\.\d+)?", where):
        whole = found[1] + (found[2] or "")
        return next((name for name in (whole, found[1]) if name in PARTS), "")
    if found := re.search(r"Fig\. (\d+)", where):
        return _FIGURES.get(int(found[1]), "")
    return "3" if re.search(r"\b(Eqs?\.|Proposition|Theorem|Remark|Lemma|Algorithm|Alg\.|App\. A)", where) else ""
