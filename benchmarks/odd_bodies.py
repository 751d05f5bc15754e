"""Bodies that no client should send: broken JSON, wrong types, deep nesting, odd Unicode, huge numbers, wrong media."""

import gzip
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

PATHS = ("/embed", "/v1/embeddings", "/predict", "/rerank", "/tokenize", "/explain", "/")
JSON = "application/json"

_FIELDS = (
    *("inputs", "input", "model", "query", "texts", "truncate", "normalize", "dimensions", "parameters", "text_pair"),
    *("raw_scores", "return_text", "encoding_format", "add_special_tokens", "user", "top_k", "function_to_apply"),
)
_CHARACTERS = (
    *("\0", "\x1b", "\x7f", "\u0085", "\u2028", "\ufeff", "\ufffe", "\uffff", "\U0010ffff", "\U000e0001"),
    *(
        "\ud800",
        "\udfff",
        "\udc80\ud800",
        "e\u0301\u0302\u0303" * 9,
        "\u202e",
        "\u200d",
        "👩‍👩‍👧‍👦",
        "ﷺ",
        "\U0001d518",
        "İ",
        "ß",
    ),
    *("我", "한", "க்ஷ", "\u0e33" * 5, "[CLS]", "[MASK]", "##s", "\t\r\n ", " ", "   "),
)
_NUMBERS = (
    "1e999",
    "-1e999",
    "NaN",
    "Infinity",
    "-Infinity",
    "9" * 30,
    "9" * 5000,
    "1." + "0" * 400 + "1",
    "-0",
    "1e-999",
)
_MEDIA = (
    *("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "multipart/form-data", ""),
    *("application/xml", "application/json; charset=utf-16", "application/json; charset=nonsense", "json", "/", ";;;"),
    *("application/vnd.api+json", "APPLICATION/JSON", "application/octet-stream", "text/" + "x" * 3000),
)


@dataclass(frozen=True)
class OddRequest:
    """The bytes of a request, and what is odd about it."""

    oddity: str
    path: str
    body: bytes
    headers: tuple[str, ...] = (f"Content-Type: {JSON}",)
    chunked: bool = False
    """Whether its length is not announced."""

    def to_bytes(self) -> bytes:
        """Return it as it is sent."""
        length = "Transfer-Encoding: chunked" if self.chunked else f"Content-Length: {len(self.body)}"
        head = "\r\n".join((f"POST {self.path} HTTP/1.1", "Host: x", length, *self.headers)).encode("latin-1")
        return head + b"\r\n\r\n" + (self._chunks() if self.chunked else self.body)

    def _chunks(self) -> bytes:
        parts = [self.body[start : start + 50_000] for start in range(0, len(self.body), 50_000)]
        return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


@dataclass
class OddBodies:
    """Draws odd requests; the same seed draws the same."""

    models: Sequence[str]
    max_body: int = 2_000_000
    seed: int = 0
    _chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)

    def draw(self) -> OddRequest:
        """Return another one."""
        ways = (
            *(self._broken_json, self._wrong_types, self._wrong_types, self._odd_text, self._odd_text),
            *(self._odd_number, self._nested, self._wrong_media, self._wrong_encoding, self._many),
        )
        # Large ones are rare: they take as long as a hundred others.
        way: Callable[[str], OddRequest] = self._chance.choice(ways) if self._chance.random() > 0.01 else self._too_long
        return way(self._chance.choice(PATHS))

    def sound(self, path: str, text: str = "a quiet film") -> dict[str, Any]:
        """Return a body that the endpoint takes."""
        if path == "/v1/embeddings":
            return {"model": self.models[0], "input": [text, "dull"]}
        if path == "/rerank":
            return {"query": text, "texts": ["dull", text]}
        return {"inputs": text}

    def _dumped(self, value: Any) -> bytes:
        """Return JSON with everything escaped or, where it can be written, nothing."""
        try:
            return json.dumps(value, ensure_ascii=self._chance.random() < 0.5).encode()
        except UnicodeEncodeError:
            return json.dumps(value).encode()

    def _broken_json(self, path: str) -> OddRequest:
        body = bytearray(self._dumped(self.sound(path)))
        for _ in range(self._chance.randint(1, 4)):
            place = self._chance.randrange(len(body))
            change = self._chance.randrange(4)
            if change == 0:
                del body[place:]
            elif change == 1:
                body[place] = self._chance.randrange(256)
            elif change == 2:
                body[place:place] = self._chance.randbytes(self._chance.randint(1, 5))
            else:
                body[place:place] = self._chance.choice(
                    (b"{", b"]", b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b'"', b"\\u")
                )
            if not body:
                break
        return OddRequest("broken JSON", path, bytes(body))

    def _value(self, depth: int = 0) -> Any:
        drawn = self._chance.randrange(9 if depth < 3 else 7)
        if drawn < 7:
            plain = (None, True, -1, 2**70, 0.5, "", self._text())
            return plain[drawn]
        count = self._chance.randint(0, 4)
        if drawn == 7:
            return [self._value(depth + 1) for _ in range(count)]
        return {self._chance.choice((*_FIELDS, self._text())): self._value(depth + 1) for _ in range(count)}

    def _wrong_types(self, path: str) -> OddRequest:
        if self._chance.random() < 0.1:
            return OddRequest("wrong types", path, self._dumped(self._value()))
        body = self.sound(path)
        for _ in range(self._chance.randint(1, 3)):
            body[self._chance.choice((*_FIELDS, *body))] = self._value()
        return OddRequest("wrong types", path, self._dumped(body))

    def _text(self) -> str:
        parts = self._chance.choices((*_CHARACTERS, "a", "film", "ab" * 30), k=self._chance.randint(1, 8))
        return "".join(parts) * self._chance.choice((1, 1, 1, 1, 50))

    def _odd_text(self, path: str) -> OddRequest:
        text = self._text()
        body = self.sound(path, text)
        if self._chance.random() < 0.2:
            body["model"] = text
        if self._chance.random() < 0.6:
            body["truncate"] = True
        if "inputs" in body and self._chance.random() < 0.5:
            body["inputs"] = [[text, self._text()], [text]] if path in ("/predict", "/") else [text, self._text()]
        return OddRequest("odd Unicode", path, self._dumped(body))

    def _odd_number(self, path: str) -> OddRequest:
        body = self._dumped(self.sound(path) | {self._chance.choice(_FIELDS): "@"})
        return OddRequest("odd number", path, body.replace(b'"@"', self._chance.choice(_NUMBERS).encode()))

    def _nested(self, path: str) -> OddRequest:
        depth = self._chance.choice((50, 300, 2000, 100_000))
        left, right = self._chance.choice(((b"[", b"]"), (b'{"a":', b"}")))
        inner = left * depth + b"1" + right * (depth if self._chance.random() < 0.7 else 0)
        field_name = self._chance.choice(_FIELDS).encode()
        sound = self._dumped(self.sound(path))[:-1]
        body = self._chance.choice(
            (inner, b'{"%s":%s}' % (field_name, inner), b'%s,"%s":%s}' % (sound, field_name, inner))
        )
        return OddRequest("nested", path, body)

    def _wrong_media(self, path: str) -> OddRequest:
        media = self._chance.choice(_MEDIA)
        return OddRequest(
            "wrong media", path, self._dumped(self.sound(path)), (f"Content-Type: {media}",) if media else ()
        )

    def _wrong_encoding(self, path: str) -> OddRequest:
        plain = self._dumped(self.sound(path))
        if self._chance.random() < 0.5:
            name = self._chance.choice(("utf-16", "utf-16-be", "utf-32", "utf-7", "utf-8-sig", "cp500"))
            return OddRequest("wrong encoding", path, plain.decode().encode(name))
        named = self._chance.choice(("gzip", "br", "deflate", "zstd", "gzip, gzip", "x" * 500))
        body = gzip.compress(plain) if self._chance.random() < 0.7 else plain
        return OddRequest("wrong encoding", path, body, (f"Content-Type: {JSON}", f"Content-Encoding: {named}"))

    def _many(self, path: str) -> OddRequest:
        count = self._chance.choice((0, 257, 1000, 20_000))
        many: tuple[Any, ...] = (
            [""] * count,
            [["a"]] * count,
            [[]] * count,
            {f"k{each}": each for each in range(count)},
        )
        name = self._chance.choice(("inputs", "input", "texts", "parameters", "unknown"))
        return OddRequest("many", path, self._dumped(self.sound(path) | {name: self._chance.choice(many)}))

    def _too_long(self, path: str) -> OddRequest:
        size = self.max_body + self._chance.choice((-1000, 1, 500_000))
        unit = self._chance.choice(("a", "a ", "我", "\u0301"))
        text = unit * (size // len(unit.encode()))
        body = json.dumps(self.sound(path, text) | {"truncate": True}, ensure_ascii=False).encode()
        return OddRequest("too long", path, body, chunked=self._chance.random() < 0.5)
