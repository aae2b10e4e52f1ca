"""Chat templates for reference_chats.py.

The template of SmolLM2 comes from the test model itself. Those here were written for this test:
they render what the named models' published templates render for conversations of text (no tools,
no images), and use the same expressions where src/text/chat_template.cc looks for them, but they
are not those templates' text.
"""

CHATML_LOOP = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")

QWEN25 = (
    "{#- It's a comment with a quotation mark. #}\n"
    "{%- if tools %}{{- '<|im_start|>system\\n' }}{{- messages[0]['content'] }}{{- \"# Tools<|im_end|>\\n\" }}"
    "{%- elif messages[0]['role'] != 'system' %}"
    "{{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}"
    "{%- endif %}\n" + CHATML_LOOP)

QWEN3 = r"""
{%- set place = namespace(last_user=messages|length - 1) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set place.last_user = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- set reasoning = '' %}
    {%- if message.role == 'assistant' and '</think>' in content %}
        {%- set reasoning = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
        {%- set content = content.split('</think>')[-1].lstrip('\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\n' }}
    {%- if message.role == 'assistant' and loop.index0 > place.last_user and (loop.last or reasoning) %}
        {{- '<think>\n' + reasoning.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
    {%- else %}
        {{- content }}
    {%- endif %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}"""

ALTERNATE = (
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}")

TAKE_SYSTEM = (
    "{% set rest = messages %}"
    "{% if messages[0]['role'] == 'system' %}"
    "{% set system_message = messages[0]['content'] %}{% set rest = messages[1:] %}{% endif %}"
    "{% if rest | length == 0 %}{{ raise_exception('no message of the user') }}{% endif %}")

LLAMA2 = (
    TAKE_SYSTEM + "{% for message in rest %}" + ALTERNATE +
    "{% if loop.index0 == 0 and messages[0]['role'] == 'system' %}"
    "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}")

LLAMA3 = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim"
    " + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}")

LLAMA31 = (
    "{%- if not date_string is defined %}{%- set date_string = \"27 Jul 2024\" %}{%- endif %}"
    "{{- bos_token }}{%- set system_message = '' %}{%- set rest = messages %}"
    "{%- if messages[0]['role'] == 'system' %}{%- set system_message = messages[0]['content'] | trim %}"
    "{%- set rest = messages[1:] %}{%- endif %}"
    "{{- \"<|start_header_id|>system<|end_header_id|>\\n\\n\" }}"
    "{{- \"Cutting Knowledge Date: December 2023\\n\" }}{{- \"Today Date: \" + date_string + \"\\n\\n\" }}"
    "{{- system_message + \"<|eot_id|>\" }}"
    "{%- for message in rest %}"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim"
    " + '<|eot_id|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}")

# With line ends between the tags, which trim_blocks and lstrip_blocks take away in part.
ZEPHYR = r"""{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\n' + message['content'] + eos_token }}
{% else %}
{{ '<|assistant|>\n' + message['content'] + eos_token }}
{% endif %}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}"""


def mistral(user, answer, system_at="loop.first"):
    return (
        TAKE_SYSTEM + "{{ bos_token }}{% for message in rest %}" + ALTERNATE +
        "{% if message['role'] == 'user' %}{% if " + system_at + " and system_message is defined %}" +
        "{{ " + user.replace("CONTENT", "system_message + '\\n\\n' + message['content']") + " }}{% else %}" +
        "{{ " + user.replace("CONTENT", "message['content']") + " }}{% endif %}" +
        "{% else %}{{ " + answer + " }}{% endif %}{% endfor %}")


MISTRAL_1 = mistral("'[INST] ' + CONTENT + ' [/INST]'", "message['content'] + eos_token")
MISTRAL_1_SPACE = mistral("'[INST] ' + CONTENT + ' [/INST]'", "message['content'] + eos_token + ' '")
MISTRAL_2 = mistral("' [INST] ' + CONTENT + ' [/INST]'", "' ' + message['content'] + eos_token")
MISTRAL_3 = mistral("\"[INST] \" + CONTENT + \"[/INST]\"", "\" \" + message[\"content\"]|trim + eos_token",
                    "loop.last")
MISTRAL_TEKKEN = mistral("\"[INST]\" + CONTENT + \"[/INST]\"", "message[\"content\"] + eos_token", "loop.last")

GEMMA = (
    "{{ bos_token }}{% set prefix = '' %}{% set rest = messages %}"
    "{% if messages[0]['role'] == 'system' %}{% set prefix = messages[0]['content'] + '\\n\\n' %}"
    "{% set rest = messages[1:] %}{% endif %}"
    "{% if rest | length == 0 %}{{ raise_exception('no message of the user') }}{% endif %}"
    "{% for message in rest %}" + ALTERNATE +
    "{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{ '<start_of_turn>' + role + '\\n' + (prefix if loop.first else '') + message['content'] | trim"
    " + '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}")

# (template, the family it belongs to, BOS, EOS)
TEMPLATES = [
    (CHATML_LOOP, "chatml", "<|endoftext|>", "<|im_end|>"),
    ("{{ bos_token }}" + CHATML_LOOP, "chatml", "<s>", "</s>"),
    (QWEN25, "chatml", "<|endoftext|>", "<|im_end|>"),
    (QWEN3, "chatml", "<|endoftext|>", "<|im_end|>"),
    (LLAMA2, "llama-2", "<s>", "</s>"),
    (LLAMA3, "llama-3", "<|begin_of_text|>", "<|eot_id|>"),
    (LLAMA31, "llama-3", "<|begin_of_text|>", "<|eot_id|>"),
    (ZEPHYR, "zephyr", "<s>", "</s>"),
    (MISTRAL_1, "mistral", "<s>", "</s>"),
    (MISTRAL_1_SPACE, "mistral", "<s>", "</s>"),
    (MISTRAL_2, "mistral", "<s>", "</s>"),
    (MISTRAL_3, "mistral", "<s>", "</s>"),
    (MISTRAL_TEKKEN, "mistral", "<s>", "</s>"),
    (GEMMA, "gemma", "<bos>", "<eos>"),
]
