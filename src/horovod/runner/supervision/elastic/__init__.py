"""What becomes of an elastic job, whose hosts and workers come and go. Pure.

policy     decides: takes an event in, asks the questions of the other files, begins generations
rules      what the user asked for
news       what each event changes in what is known
facts      all that is known
hosts      which hosts are listed, which rest after a failure
processes  the workers whose processes have not ended
starting   where workers are started
plan       who is in the next generation, and when it begins
removals   which workers have to go
slowness   what becomes of workers that make the others wait
finishes   what becomes of the others when members have ended well
endings    when the job ends by itself, and as what
turn       one decision in the making
reports    what the user is told
"""
