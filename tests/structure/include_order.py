"""Fails on an #include that points from a folder of src/ to one that stands above it.

The order is the map of folders in the README: a folder includes only itself and those before it.
"""

import pathlib
import re
import sys

ORDER = [
    "base", "fixed", "model", "formats", "text", "quant", "pack", "program", "machine",
    "exec", "session", "serve", "cli",
]
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')


def problems(root: pathlib.Path) -> list[str]:
    found = []
    files = [p for p in sorted((root / "src").rglob("*")) if p.suffix in (".h", ".cc")]
    if not files:
        return ["no sources under src/"]
    for path in files:
        folder = path.relative_to(root / "src").parts[0]
        if folder not in ORDER:
            found.append(f"{path}: folder {folder} is not in the order")
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            target = match.group(1).split("/")[0]
            place = f"{path.relative_to(root)}:{number}"
            if target not in ORDER:
                found.append(f'{place}: "{match.group(1)}" does not start with a folder of src/')
            elif ORDER.index(target) > ORDER.index(folder):
                found.append(f"{place}: {folder} includes {target}, which stands above it")
    return found


if __name__ == "__main__":
    result = problems(pathlib.Path(sys.argv[1]))
    print("\n".join(result) or "include order holds")
    sys.exit(1 if result else 0)
