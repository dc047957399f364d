#!/bin/sh
# Builds the documentation as a site: scripts/docs.sh DVS DIRECTORY
#
# Pages are those of docs/, README.md and its like; the reference of commands is what the binary DVS says of itself, that
# of the library its manual pages. Needs Sphinx, MyST and mandoc (scripts/setup.sh docs); no network.
set -eu

dvs=$1
out=$2
root=$(cd "$(dirname "$0")/.." && pwd)
source=$out/source
backspace=$(printf '\b')

rm -rf "$out"
mkdir -p "$source/docs/reference" "$out/man"
cp "$root"/*.md "$source/"
cp -R "$root"/docs/*.md "$root"/docs/*.json "$root"/docs/guide "$root"/docs/design "$source/docs/"
cp "$root/docs/conf.py" "$source/conf.py"

"$dvs" internal man "$out/man" >/dev/null
cp "$root"/kernel/ipc-c/man/*.[0-9]* "$out/man/"
{
    echo "# Reference"
    echo
    echo "Every command and every call, as \`man\` shows them."
    echo
} >"$source/docs/reference/index.md"
for page in "$out"/man/*; do
    name=$(basename "$page")
    # Of a page that only names another one there is nothing to show.
    grep -q '^\.so ' "$page" && continue
    # As a terminal shows it, without the strokes that make letters bold there.
    {
        printf '# %s\n\n```text\n' "${name%.*}"
        mandoc -T utf8 -O width=100 "$page" | sed "s/.$backspace//g"
        echo '```'
    } >"$source/docs/reference/$name.md"
    echo "- [${name%.*}]($name.md)" >>"$source/docs/reference/index.md"
done

cat >"$source/index.md" <<'EOF'
# DVS

```{toctree}
:hidden:
:caption: Guide

docs/index
README
docs/guide/tutorial
docs/guide/shop
docs/guide/tasks
docs/habits
docs/guide/crossing
docs/guide/failures
docs/guide/operating
docs/guide/comparison
SECURITY
```

```{toctree}
:hidden:
:glob:
:maxdepth: 1
:caption: Reference

docs/reference/index
docs/reference/*
```

```{toctree}
:hidden:
:glob:
:maxdepth: 1
:caption: How it is made

ARCHITECTURE
GLOSSARY
docs/design/*
CHANGELOG
CONTRIBUTING
docs/STYLE
```

[Begin here](docs/index.md), or [try it at once](docs/guide/tutorial.md).
EOF

sphinx-build -q -b html "$source" "$out/html" 2>"$out/warnings" || { cat "$out/warnings" >&2; exit 1; }
# What leads to a file of the source has no page here.
grep -v "reference target not found" "$out/warnings" >&2 || true
echo "$out/html/index.html"
