"""How things look, in one place: colours, styles, templates and charts of pages, pictures and notebooks."""
