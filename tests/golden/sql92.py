"""Results of the Java evaluator for SQL92 expressions: cases, and `data/sql92.json` made from them.

`python -m tests.golden.sql92` writes the file again, after `mvn package` in `java/`;
`tests.golden.generate` does so too.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
FILE: Final = HERE / "data" / "sql92.json"

MESSAGES: Final[list[dict[str, str]]] = [
    {},
    {"a": "5"},
    {"a": "6", "b": "x"},
    {"a": "-5", "b": ""},
    {"a": "5.0", "b": "5"},
    {"a": "5e0", "b": "5d"},
    {"a": "abc", "b": "true"},
    {"a": "true", "b": "TRUE"},
    {"a": "false", "b": "false"},
    {"a": "NaN", "b": "1"},
    {"a": "Infinity", "b": "-Infinity"},
    {"a": "3000000000", "b": "2147483648"},
    {"a": "9223372036854775808", "b": "9223372036854775807"},
    {"a": " 5 ", "b": " 5"},
    {"a": "+5", "b": "-0"},
    {"a": "-0.0", "b": "0.0"},
    {"a": "0x10", "b": "0x1p4"},
    {"a": "1_000", "b": "1000"},
    {"a": "\u0665", "b": "\uff15"},
    {"a": "it's", "b": "prefix-middle-suffix"},
    {"a": "Ünïcode 标签", "b": "标签"},
    {"a": "007", "b": "7"},
    {"b": "5"},
    {"b": "x"},
    {"TAGS": "TagA", "KEYS": "k1", "$d": "1", "_u": "2", "A": "5"},
]

EXPRESSIONS: Final[list[str]] = [
    # Comparisons with numbers
    *[f"a {order} 5" for order in ("=", "<>", ">", ">=", "<", "<=")],
    *[f"5 {order} a" for order in ("=", "<>", ">", ">=", "<", "<=")],
    *[f"a {order} 5.0" for order in ("=", "<>", ">", ">=", "<", "<=")],
    *[f"5.0 {order} a" for order in ("=", "<>", ">", ">=", "<", "<=")],
    *[f"a {order} b" for order in ("=", "<>", ">", ">=", "<", "<=")],
    *["a = 5L", "a = 5l", "a > 3000000000", "3000000000 <= a", "a = 3000000000", "a > -3000000000"],
    *["a = -5", "-5 = a", "a > -5.5", "a = +5", "+a = 5", "a = - -5", "a = - - - 5", "-a = 5"],
    *["-a > 3", "-a IS NULL", "a < 9223372036854775807", "a = 9223372036854775808"],
    *["a > -9223372036854775808", "a = 5.", "a = .5", "a = 5E0", "a = 5e+0", "a = 50.E-1"],
    *["a = 1e400", "a = 1e-400", "a > 4.9E-324", "a > 1.7976931348623157E308", "a = 05", "a = 0"],
    *["5 = 5", "5 = 5.0", "5 > 3000000000", "3000000000 > 5", "5 > 4.5", "4.5 < 5", "2 <> 2"],
    *["9007199254740993 = 9007199254740992.0", "9007199254740993 > 9007199254740992.0"],
    # Strings
    *["a = 'abc'", "a <> 'abc'", "'abc' = a", "'abc' <> a", "a = 'it''s'", "a = ''", "b <> ''"],
    *["'a' = 'a'", "'5' = 5", "5 = '5'", "'x' = 5", "5 = 'x'", "5.5 = '5.5'", "a = 'Ünïcode 标签'"],
    *["'' = ''", "a = ' 5 '", "a = 'NaN'"],
    # Truth
    *[
        "a = TRUE",
        "a = FALSE",
        "a <> true",
        "a <> False",
        "TRUE = a",
        "FALSE <> a",
        "TRUE",
        "FALSE",
    ],
    *["NULL", "NOT TRUE", "NOT NULL", "TRUE = TRUE", "TRUE = FALSE", "TRUE = 5", "5 = TRUE"],
    *["'true' = TRUE", "TRUE = 'true'", "NULL = NULL", "NULL IS NULL", "a", "NOT a", "a AND b"],
    *["a OR TRUE", "TRUE OR a", "NOT a OR b = 'x'", "NOT NOT a", "NOT NOT TRUE", "5 IS NULL"],
    # NULL
    *["a IS NULL", "a IS NOT NULL", "a is null", "a Is Not Null", "a = NULL", "a <> NULL"],
    *["NULL = a", "c = d", "c <> d", "c = 5", "5 = c", "5 <> c", "NOT (5 = c)", "c > d", "c > 5"],
    *["(a > 5) IS NULL", "(a = 5) IS NOT NULL", "TRUE IS NOT NULL", "a IS NULL IS NULL"],
    # Ranges
    *["a BETWEEN 1 AND 5", "a NOT BETWEEN 1 AND 5", "a between 5 and 5", "a BETWEEN 5 AND 1"],
    *["a NOT BETWEEN 5 AND 1", "a BETWEEN -5 AND 5", "a BETWEEN 5 AND -5", "a BETWEEN 1 AND b"],
    *["a BETWEEN b AND 6", "5 BETWEEN a AND b", "a BETWEEN 1.5 AND 5", "a BETWEEN 6 AND 5.5"],
    *["a BETWEEN 'a' AND 'z'", "a BETWEEN NULL AND 5", "a BETWEEN TRUE AND 5", "5 BETWEEN 1 AND 6"],
    *["a BETWEEN 1 AND 5 AND b = '5'", "a BETWEEN 1 AND 5 OR b = 'x'", "NOT (a BETWEEN 1 AND 5)"],
    *["a NOT BETWEEN b AND 5", "a BETWEEN 3000000000 AND 5", "a BETWEEN 1 AND 3000000000"],
    # Lists
    *[
        "a IN ('5', '6')",
        "a NOT IN ('5', '6')",
        "a in ('abc')",
        "a IN ('it''s','','x','y','z','5')",
    ],
    *["(a) IN ('5')", "a IN ()", "a IN (5)", "'5' IN ('5')", "NOT a IN ('5')", "NOT (a IN ('5'))"],
    *["a IN ('5') = TRUE", "a IN ('5',)", "a NOT IN ('5') OR b IN ('x')", "a IN ('5') IN ('5')"],
    # Texts
    *["b CONTAINS 'middle'", "b NOT CONTAINS 'middle'", "b STARTSWITH 'prefix'", "b contains ''"],
    *[
        "b NOT STARTSWITH 'prefix'",
        "b ENDSWITH 'suffix'",
        "b NOT ENDSWITH 'suffix'",
        "b NOT contains ''",
    ],
    *[
        "a CONTAINS '标'",
        "'abc' CONTAINS 'b'",
        "5 CONTAINS '5'",
        "(a > 5) CONTAINS 'x'",
        "-a CONTAINS '5'",
    ],
    *[
        "NOT b CONTAINS 'x'",
        "NOT (b CONTAINS 'x')",
        "b CONTAINS 5",
        "b CONTAINS a",
        "TRUE CONTAINS 'T'",
    ],
    *[
        "(a > 5) CONTAINS ''",
        "NULL CONTAINS 'x'",
        "b CONTAINS '5' CONTAINS '5'",
        "NULL NOT CONTAINS 'x'",
    ],
    # Precedence and order of evaluation
    *["a = 5 AND b = 'x' OR b = '5'", "b = '5' OR a = 5 AND b = 'x'", "a > 5 OR b = '5'"],
    *[
        "b = '5' OR a > 5",
        "a > 5 AND b = 'x'",
        "b = 'x' AND a > 5",
        "(a = 5 OR b = 'x') AND b = 'x'",
    ],
    *["NOT a = 5", "NOT a > 5", "NOT (a > 5)", "NOT (a > 5) AND b = 'x'", "NOT a IS NULL"],
    *["a > 5 = TRUE", "TRUE = (a > 5)", "a > 5 > 3", "a = 5 = TRUE", "a = b = TRUE", "a = 5 = b"],
    *["(a > 5) = (b > 5)", "(a > 5) <> (b > 5)", "((((a = 5))))", "(a > 5) > 3", "a > (b > 5)"],
    *[
        "a > -(b > 5)",
        "-(a > 5) = 3",
        "-(a > 5) = 3 OR b = 'x'",
        "-'x' = a",
        "a = -'x'",
        "a > -TRUE",
    ],
    *["a < 1 OR a > 3 OR b = 'x' OR b = '5'", "a > 1 AND a < 9 AND b = 'x' AND b <> '5'", "+TRUE"],
    # Texts of expressions
    *["a/**/=/* c */5", "a -- comment\n = 5", "a = 5 -- comment\n", "\ta\n=\r5\f", "a=5AND b='x'"],
    *[
        "$d = 1",
        "_u = 2",
        "A = 5",
        "TAGS = 'TagA'",
        "KEYS = 'k1' aNd TAGS CONTAINS 'Tag'",
        "a=5 OR\nb='x'",
    ],
    *[
        "",
        " ",
        "a = ",
        "= 5",
        "a == 5",
        "a != 5",
        "a = 5 AND",
        "(a = 5",
        "a = 'x",
        'a = "x"',
        "a ? 5",
    ],
    *["a LIKE 'x'", "a = 5 b", "a = 5)", "5", "'x'", "-a", "-5", "a + 5 = 6", "a.b = 5", "a-b = 5"],
    *[
        "a > 'x'",
        "a > TRUE",
        "a >= NULL",
        "'x' < a",
        "a IS 5",
        "a NOT 5",
        "AND a",
        "a IN '5'",
        "a = 0x10",
    ],
    *["a > 0.0", "a = 00", "a = 5LL", "a BETWEEN 1, 5", "a NOT NULL", "NOT", "()", "/* a = 5"],
]


def generate(java: Path = HERE / "java") -> str:
    """The text of the file, by the 5.x evaluator."""
    module = java / "golden5" / "target"
    classpath = f"{module / 'classes'}:{(module / 'classpath.txt').read_text().strip()}"
    answer = subprocess.run(
        ["java", "-Dfile.encoding=UTF-8", "-cp", classpath, "cometmq.golden.Sql92"],
        input=json.dumps({"expressions": EXPRESSIONS, "messages": MESSAGES}),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    lines = ",\n".join(json.dumps(entry) for entry in json.loads(answer))
    messages = ",\n".join(json.dumps(message) for message in MESSAGES)
    return f'{{"messages": [\n{messages}\n],\n"expressions": [\n{lines}\n]}}\n'


def load() -> tuple[list[dict[str, str]], list[dict[str, Any]]]:
    """The messages, and for each expression its `error`, or its `results` with a letter for each
    message: T(rue), F(alse), N(ull), E(rror).
    """
    content = json.loads(FILE.read_text())
    return content["messages"], content["expressions"]


if __name__ == "__main__":
    FILE.write_text(generate())
