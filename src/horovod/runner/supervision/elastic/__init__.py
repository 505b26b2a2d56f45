"""Decides the course of an elastic job, whose hosts and workers come and go. Pure.

policy       decides: takes an event in, asks the questions of the other files, gives commands
states       the states of a job, and what is known in each: job, start, generation, loss
generations  who is in the next generation, and when it begins
rules        what the user asked for
news         what each event changes in what is known
hosts        which hosts are listed, which rest after a failure
processes    the workers whose processes have not ended
starting     where workers are started
removals     which workers have to go
slowness     what becomes of workers that make the others wait
endings      when the job ends by itself, and as what; members that have ended well
turn         one decision in the making
reports      what the user is told
"""
