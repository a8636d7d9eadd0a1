"""How things look, in one place: pages, pictures and notebooks (colours, templates, charts), tables on terminals."""
