"""The problem sets: text with solutions in ``tutorials/exercises/NN_name.md``, released, answered, graded.

text            a set's text -> the teacher's notebook with nbgrader's metadata
release         `bench release`: the students' copies; `bench course export`: for Gradescope and GitHub Classroom
grade           `bench grade`: points and feedback of submissions; `bench course check`
nbgrading       nbgrader in separate processes: make the students' copy, grade one notebook
nbgrader_hooks  how nbgrader executes notebooks and renders feedback here
contained       run a command with a limit, leave no process, notice changed code
closed          files that answers may not open
cells           run a notebook's cells without Jupyter
plain           the visible tests as tests of pytest, without nbgrader
"""
