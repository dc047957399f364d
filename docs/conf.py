"""Of the site that `make docs` builds (Sphinx, with Markdown by MyST)."""

project = "DVS"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
root_doc = "index"
html_theme = "alabaster"
html_theme_options = {"description": "A container that spans machines", "page_width": "75rem", "sidebar_width": "15rem"}
html_show_sphinx = False
html_copy_source = False
# Headings can be led to, as Markdown elsewhere has it.
myst_heading_anchors = 3
exclude_patterns = ["target"]
# Files that are no pages are copied and led to as they are.
suppress_warnings = ["myst.xref_missing", "toc.not_readable", "toc.not_included", "image.not_readable"]
