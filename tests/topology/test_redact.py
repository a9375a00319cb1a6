"""Secrets of an environment, of URLs and of headers, as they stand in the words of nodes."""

from __future__ import annotations

import pytest

from pdtui.topology.redact import redacted, redacted_text


@pytest.mark.parametrize(
    "text",
    [
        "http_proxy=http://ann:S3CRET@proxy:3128",
        "http://ann:p@S3CRET@proxy:3128",
        "http://ann:a/S3CRET@proxy:3128",
        "http://:S3CRET@proxy",
        "https://S3CRET@hub.example/x.git",
        "HTTPS_PROXY=ann:S3CRET@proxy:3128",
        "+ export AWS_SECRET_ACCESS_KEY=S3CRET",
        "PRIVATE_KEY: S3CRET",
        "DB_PWD=S3CRET",
        "HF_TOKEN='S3CRET",
        r'{"body": "{\"api_key\": \"S3CRET S3CRET\"}"}',
        '"Authorization": "Bearer S3CRET"',
        "curl -H 'X: Bearer S3CRET'",
        "cannot log in with hf_S3CRETS3CRETS3CRETS3CRET",
    ],
)
def test_what_looks_like_a_secret_is_hidden(text: str) -> None:
    assert "S3CRET" not in redacted_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "PWD=/data/models OLDPWD=/",
        "http://10.0.0.1:8000/v1/chat answers ann@desk",
        "no_proxy=127.0.0.1,10.0.0.1",
        "max_num_batched_tokens: 256",
        "ssh://root@node3",
        "AWS_ACCESS_KEY_ID=id",
    ],
)
def test_what_is_none_stays(text: str) -> None:
    assert redacted_text(text) == text


def test_tokens_of_a_model_are_no_secrets() -> None:
    words = ("--hf-overrides", '{"pad_token": "<pad>", "image_token": "<img>", "hub_token": "S3CRET"}')
    assert redacted(words, {})[0][1] == '{"pad_token": "<pad>", "image_token": "<img>", "hub_token": "***"}'
