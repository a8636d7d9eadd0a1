"""`jstream ui`: pages over a store, for people who want to see it, above all when it is broken.

    site      the store that is shown, and the one look at it a second that all viewers share
    model     what a page shows, as plain values: the same that `/api` answers
    payload   what hostile bytes look like to people
    changes   what pages may do with `--allow-changes`: plan, question, work
    rescue    the scan of directories of other servers
    doors     who may ask: hosts, tokens, forms of other sites, what a page may load
    server    routes, templates, errors; HTTP

Nothing here takes a lock of the store or writes to it, but for `changes`, which `--allow-changes` lets in.
docs/ui.md has the whole.
"""
