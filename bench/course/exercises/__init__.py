"""The problem sets: text with solutions in ``tutorials/exercises/NN_name.md``, handed out, answered, graded.

text          a problem set's text -> the teacher's notebook, with nbgrader's metadata
nbgrading     what nbgrader does, each in a process of its own: make the students' copy, grade one notebook
contained     a command with a limit, of which no process is left
closed        files that answers may not open
submissions   what students have handed in, and a notebook to grade made of their answers and the original tests
release       `bench release`: the students' copies, and all that they need with them
grade         `bench grade`: points and feedback of everything that was handed in
solutions     `bench solutions-check`: the solutions score full, the blanks zero
cells         a notebook's cells run without Jupyter, for ``plain`` and for quick tests
plain         the visible tests as tests of pytest, without nbgrader
"""
