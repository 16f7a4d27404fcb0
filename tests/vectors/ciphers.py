"""X25519, ChaCha20-Poly1305 and AES-256-GCM in plain Python, after their standards: slow, not safe against who measures
times, and made to be read. Only to say what the real ones have to give.
"""

from __future__ import annotations

P = 2**255 - 19


def x25519(secret: bytes, point: bytes = (9).to_bytes(32, "little")) -> bytes:
    """RFC 7748, section 5."""
    k = int.from_bytes(secret, "little") & ~7 & (2**254 - 1) | 2**254
    u = int.from_bytes(point, "little") & (2**255 - 1)
    x2, z2, x3, z3, swap = 1, 0, u, 1, 0
    for t in reversed(range(255)):
        bit = k >> t & 1
        if swap ^ bit:
            x2, z2, x3, z3 = x3, z3, x2, z2
        swap = bit
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        aa, bb, da, cb = a * a % P, b * b % P, d * a % P, c * b % P
        e = aa - bb
        x3, z3 = (da + cb) ** 2 % P, u * (da - cb) ** 2 % P
        x2, z2 = aa * bb % P, e * (aa + 121665 * e) % P
    if swap:
        x2, z2 = x3, z3
    return (x2 * pow(z2, P - 2, P) % P).to_bytes(32, "little")


def _words(data: bytes) -> list[int]:
    return [int.from_bytes(data[i : i + 4], "little") for i in range(0, len(data), 4)]


def _chacha_block(key: bytes, counter: int, nonce: bytes) -> bytes:
    """RFC 8439, section 2.3."""
    start = [0x61707865, 0x3320646E, 0x79622D32, 0x6B206574, *_words(key), counter, *_words(nonce)]
    s = list(start)

    def quarter(a: int, b: int, c: int, d: int) -> None:
        for x, y, z, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            s[x] = (s[x] + s[y]) & 0xFFFFFFFF
            mixed = s[z] ^ s[x]
            s[z] = (mixed << turn | mixed >> (32 - turn)) & 0xFFFFFFFF

    for _ in range(10):
        for i in range(4):
            quarter(i, 4 + i, 8 + i, 12 + i)
        for i in range(4):
            quarter(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
    return b"".join(((x + y) & 0xFFFFFFFF).to_bytes(4, "little") for x, y in zip(s, start, strict=True))


def _poly1305(key: bytes, data: bytes) -> bytes:
    """RFC 8439, section 2.5."""
    r, total = int.from_bytes(key[:16], "little") & 0x0FFFFFFC0FFFFFFC0FFFFFFC0FFFFFFF, 0
    for i in range(0, len(data), 16):
        total = (total + int.from_bytes(data[i : i + 16] + b"\1", "little")) * r % (2**130 - 5)
    return ((total + int.from_bytes(key[16:], "little")) % 2**128).to_bytes(16, "little")


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 16)


def chacha20_poly1305(key: bytes, nonce: bytes, extra: bytes, text: bytes) -> tuple[bytes, bytes]:
    """(text encrypted, tag), RFC 8439, section 2.8."""
    stream = b"".join(_chacha_block(key, 1 + i, nonce) for i in range(-(-len(text) // 64)))
    sealed = bytes(a ^ b for a, b in zip(text, stream, strict=False))
    lengths = len(extra).to_bytes(8, "little") + len(sealed).to_bytes(8, "little")
    return sealed, _poly1305(_chacha_block(key, 0, nonce)[:32], _padded(extra) + _padded(sealed) + lengths)


def _times(a: int, b: int) -> int:
    """In the field of AES (FIPS 197, section 4.2)."""
    product = 0
    while b:
        product ^= a * (b & 1)
        a, b = (a << 1) ^ (0x11B if a & 0x80 else 0), b >> 1
    return product


def _make_sbox() -> list[int]:
    box = []
    for value in range(256):
        inverse = next((x for x in range(256) if _times(value, x) == 1), 0)
        box.append(0x63 ^ inverse)
        for turn in range(1, 5):
            box[-1] ^= (inverse << turn | inverse >> (8 - turn)) & 0xFF
    return box


_SBOX = _make_sbox()


def _aes256(key: bytes, block: bytes) -> bytes:
    """FIPS 197, section 5."""
    words = [list(key[i : i + 4]) for i in range(0, 32, 4)]
    constant = 1
    for i in range(8, 60):
        word = list(words[-1])
        if i % 8 == 0:
            word = [_SBOX[b] for b in word[1:] + word[:1]]
            word[0] ^= constant
            constant = _times(constant, 2)
        elif i % 8 == 4:
            word = [_SBOX[b] for b in word]
        words.append([a ^ b for a, b in zip(word, words[-8], strict=True)])
    rounds = [[b for word in words[i : i + 4] for b in word] for i in range(0, 60, 4)]
    s = [a ^ b for a, b in zip(block, rounds[0], strict=True)]
    for number, key_of_round in enumerate(rounds[1:], 1):
        s = [_SBOX[s[(i + 4 * (i % 4)) % 16]] for i in range(16)]
        if number < 14:
            columns = [s[i : i + 4] for i in range(0, 16, 4)]
            s = [
                _times(c[i], 2) ^ _times(c[(i + 1) % 4], 3) ^ c[(i + 2) % 4] ^ c[(i + 3) % 4]
                for c in columns
                for i in range(4)
            ]
        s = [a ^ b for a, b in zip(s, key_of_round, strict=True)]
    return bytes(s)


def aes_256_gcm(key: bytes, nonce: bytes, extra: bytes, text: bytes) -> tuple[bytes, bytes]:
    """(text encrypted, tag), NIST SP 800-38D, section 7.1, for nonces of 12 bytes."""
    h = int.from_bytes(_aes256(key, bytes(16)), "big")

    def counter(i: int) -> bytes:
        return _aes256(key, nonce + i.to_bytes(4, "big"))

    stream = b"".join(counter(2 + i) for i in range(-(-len(text) // 16)))
    sealed = bytes(a ^ b for a, b in zip(text, stream, strict=False))
    data = _padded(extra) + _padded(sealed) + (8 * len(extra)).to_bytes(8, "big") + (8 * len(sealed)).to_bytes(8, "big")
    y = 0
    for i in range(0, len(data), 16):
        x, v, y = y ^ int.from_bytes(data[i : i + 16], "big"), h, 0
        for bit in range(127, -1, -1):
            y ^= v * (x >> bit & 1)
            v = v >> 1 ^ (0xE1 << 120 if v & 1 else 0)
    return sealed, bytes(a ^ b for a, b in zip(counter(1), y.to_bytes(16, "big"), strict=True))


SEAL = {"aes-256-gcm": aes_256_gcm, "chacha20-poly1305": chacha20_poly1305}
