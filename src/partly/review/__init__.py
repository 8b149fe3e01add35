"""A page on which people answer: is this label in this image?

What enters: a trained run, a data set of images, and what people press. What leaves: lines in the
journal of answers beside the data (`partly.answers`). `serving.review_run` is the whole job.

beliefs    the model's probability of every cell, kept in the run's folder
ledger     the answers so far, in step with the journal, whoever writes to it
choosing   which cells to show: questions, suspected errors, a gallery
presence   who looks at what just now
pictures   an image by its row, upright and small enough to send
guard      who may ask for what
app        the addresses that the page asks
serving    the server, from its first to its last second
page/      HTML, CSS and JavaScript as they are sent
"""
