"""Public side: pages made from the billboard alone, each a single offline file.

Read in this order:

* `number_text`, `chart` and `table`: numbers, charts and tables of a page.
* `billboard_page`: the page for everybody, with the agent's function in JavaScript.
* `board_tables` and `public_report`: the report for journalists and auditors.
* `web/`: templates, style and scripts. `allocate.js`, `own_record.js`, `in_words.js` and
  `number_text.js` are the twins of the Python modules with those names.
"""
