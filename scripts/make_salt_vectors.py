"""Write tests/fixtures/cache_salts.json: salts by the letter of decisions C24, P7.

Deliberately apart from ``continuum_shared.cache_salt``: standard library only, one formula, so that
the vectors do not repeat a mistake of the code that they test.
"""

import base64
import hashlib
import hmac
import json
from pathlib import Path

OUT = Path(__file__).parents[1] / "tests" / "fixtures" / "cache_salts.json"

KEYS = {
    "zeros": "00" * 32,
    "ones": "ff" * 32,
    "counting": bytes(range(32)).hex(),
    "chat": "bba1e43c50fda3599411b131ebe5ba59c793a142de2071d3631a893ffbabe93b",
}
ROWS = [
    ("one backend", "a-secret-of-the-operator", "vllm-1", "Llama-3.1-8B", "chat"),
    ("another backend", "a-secret-of-the-operator", "vllm-2", "Llama-3.1-8B", "chat"),
    ("another model", "a-secret-of-the-operator", "vllm-1", "tiny-lora", "chat"),
    ("another secret", "the-secret-after-rotation", "vllm-1", "Llama-3.1-8B", "chat"),
    ("fleet", "a-secret-of-the-operator", None, "Llama-3.1-8B", "chat"),
    ("key of zeros", "s", "b", "m", "zeros"),
    ("key of ones", "s", "b", "m", "ones"),
    ("model with slash and Korean", "s", "b", "org/모델", "counting"),
    ("secret in Korean", "비밀-열쇠", "b", "m", "counting"),
]


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def salt(secret: str, backend: str | None, model: str, key: bytes) -> str:
    message = b"cr1\0" + (backend or "").encode() + b"\0" + model.encode() + b"\0" + key
    tag = hmac.new(secret.encode(), message, hashlib.sha256).digest()[:12]
    return f"cr1.{b64(key)}.{b64(tag)}"


def main() -> None:
    rows = [
        {
            "name": name,
            "secret": secret,
            "scope": "fleet" if backend is None else "backend",
            "backend": backend or "any",
            "model": model,
            "key": KEYS[key],
            "salt": salt(secret, backend, model, bytes.fromhex(KEYS[key])),
        }
        for name, secret, backend, model, key in ROWS
    ]
    OUT.write_text(json.dumps(rows, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
