"""Conversations rendered by jinja2, for chat_template_reference_test.cc.

reference_chats.py MODEL SEED OUT
  MODEL  a GGUF file whose template is added to those of chat_templates.py; may be empty
OUT: per template the metadata, the family's name, the count of conversations, and for each: the
roles and contents as one list, add_generation_prompt as a byte, whether it renders as a byte, the
text.
"""

import random
import sys

try:
    import gguf  # noqa: F401, used by reference_file
    import jinja2
    import jinja2.sandbox
except ImportError as error:
    print(f"reference_chats.py: {error}", file=sys.stderr)
    sys.exit(77)

from chat_templates import TEMPLATES
from reference_file import Writer, gguf_metadata

CONTENTS = [
    "Hello", "", " ", "  leading and trailing \n", "\n\n", "two\nlines", "{{ braces }} {% if %} {# no #}",
    "quotes ' and \"", "back\\slash \\n", "naïve 你好 😀", "\u00a0no-break\u3000", "\u2028", "<b>html & co</b>",
    "# heading\n\n* list\n", "a" * 300, "<think>\nhm\n</think>\n\nanswer", "</think>x", "<think>a</think>b</think>c",
    "\x1f unit",
]


def conversations(seed):
    rng = random.Random(seed)
    for _ in range(400):
        roles = ["system"] * (rng.random() < 0.4)
        roles += ["user", "assistant"] * rng.randint(0, 3) + ["user"] * (rng.random() < 0.7)
        if rng.random() < 0.1:
            roles = roles[:1] + rng.choices(["user", "assistant"], k=rng.randint(0, 3))
        if roles:
            yield [{"role": role, "content": rng.choice(CONTENTS)} for role in roles], rng.random() < 0.6


def compile_template(source):
    # As the transformers package runs templates.
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    environment.globals["raise_exception"] = raise_exception
    return environment.from_string(source)


def render(template, **variables):
    try:
        return template.render(**variables)
    except jinja2.exceptions.TemplateError:
        return None


def main(model, seed, out):
    templates = list(TEMPLATES)
    if model:
        own = gguf_metadata(model)
        tokens = own["tokenizer.ggml.tokens"]
        templates.append((own["tokenizer.chat_template"], "chatml", tokens[own["tokenizer.ggml.bos_token_id"]],
                          tokens[own["tokenizer.ggml.eos_token_id"]]))
    print(f"reference_chats.py: seed {seed}", file=sys.stderr)
    writer = Writer(out)
    for template, family, bos, eos in templates:
        writer.metadata({
            "tokenizer.chat_template": template,
            "tokenizer.ggml.tokens": [bos, eos],
            "tokenizer.ggml.bos_token_id": 0,
            "tokenizer.ggml.eos_token_id": 1,
        })
        writer.string(family)
        compiled = compile_template(template)
        cases = list(conversations(int(seed)))
        writer.number("I", len(cases))
        for messages, generate in cases:
            text = render(compiled, messages=messages, add_generation_prompt=generate, bos_token=bos,
                          eos_token=eos)
            flat = [part for message in messages for part in (message["role"], message["content"])]
            writer.number("I", len(flat))
            for part in flat:
                writer.string(part)
            writer.number("B", generate)
            writer.number("B", text is not None)
            writer.string(text or "")


if __name__ == "__main__":
    main(*sys.argv[1:])
