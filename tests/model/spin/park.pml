/* Parking and the wake-ups of who adds roots, on a machine that delays stores.
 *
 * Every process has a store buffer, as processors have: a store goes into it, and reaches memory at any time
 * later, in order. A fence waits until the own buffer is empty; so does an unlock. A lock does not. Nobody
 * has a time limit on his sleep here: whoever is not rung sleeps for ever, and the search finds that.
 * See README.md here, `mpsched/_worker/README.md`, Parking, and `mpsched/_deque/README.md`, No lost wake-up.
 */

#ifndef KILLS
#define KILLS 1
#endif
#define R 2      /* roots */
#define P 2      /* the parent */
#define NOBODY 9

#define STATE(w) (w)
#define BOX(w) (2 + (w))     /* how many roots inbox w holds */
#define AWAKE 0
#define PARKED 1

byte mem[4];
chan buffer[3] = [3] of { byte, byte };
byte lock[2];
bool bell[2];
byte hand[2];                /* roots CLAIMED by w */
bool alive[2];
byte ready, over, kills;
byte slow = NOBODY;          /* whose root ends after all others, at most one */

#define STORE(me, at, value) buffer[me]!at, value
#define FENCE(me) empty(buffer[me])
#define LOCK(v, me) atomic { lock[v] == NOBODY -> lock[v] = me }
#define UNLOCK(v, me) atomic { empty(buffer[me]) -> lock[v] = NOBODY }
#ifdef NO_FENCE_PARKER
#define FENCE_PARKER(me) skip
#else
#define FENCE_PARKER(me) FENCE(me)
#endif
#ifdef NO_FENCE_ADDER
#define FENCE_ADDER(me) skip
#else
#define FENCE_ADDER(me) FENCE(me)
#endif
#define MAY_DIE :: kills < KILLS -> kills++; goto dead

active proctype Memory() {
	byte at, value;
end:
	do
	:: atomic { buffer[0]?at, value -> mem[at] = value; at = 0; value = 0 }
	:: atomic { buffer[1]?at, value -> mem[at] = value; at = 0; value = 0 }
	:: atomic { buffer[2]?at, value -> mem[at] = value; at = 0; value = 0 }
	od
}

/* Take one, or two of the own inbox; the lock is held. The store is the linearization point. */
inline take(v, me, most) {
	if
	:: mem[BOX(v)] >= most && most == 2 -> atomic { STORE(me, BOX(v), mem[BOX(v)] - 2); hand[me] = 2 }
	:: mem[BOX(v)] >= 1 -> atomic { STORE(me, BOX(v), mem[BOX(v)] - 1); hand[me] = 1 }
	:: mem[BOX(v)] == 0
	fi
}

/* Whoever has added to inbox v: the owner if it sleeps, else another. */
inline wake(v) {
	if
	:: mem[STATE(v)] == PARKED -> bell[v] = true
	:: else ->
#ifdef OWNER_ONLY
		skip
#else
		if
		:: mem[STATE(1 - v)] == PARKED -> bell[1 - v] = true
		:: else
		fi
#endif
	fi
}

proctype Worker(byte w) {
	bool found;
again:
	if
	:: over == R -> goto done
	:: else
	fi;
	/* find_work: cheap looks, then the lock */
	if
	:: mem[BOX(w)] > 0 ->
		LOCK(w, w);
		take(w, w, 2);
		if :: UNLOCK(w, w) MAY_DIE fi
	:: else ->
		if
		:: mem[BOX(1 - w)] > 0 ->
			if
			:: atomic { lock[1 - w] == NOBODY -> lock[1 - w] = w };
				take((1 - w), w, 1);
				if :: UNLOCK(1 - w, w) MAY_DIE fi
			:: atomic { lock[1 - w] != NOBODY -> skip }
			fi
		:: else
		fi
	fi;
	if
	:: atomic { hand[w] == 2 -> slow = w };
		/* The first is long: the helper gives the other one back, and it ends after that one. */
		LOCK(w, w);
		if :: atomic { STORE(w, BOX(w), mem[BOX(w)] + 1); hand[w] = 1 } MAY_DIE fi;
		UNLOCK(w, w);
		FENCE_ADDER(w);
#ifndef SILENT_GIVE_BACK
		if
		:: mem[STATE(1 - w)] == PARKED -> bell[1 - w] = true
		:: else
		fi;
#endif
		if
		:: atomic { over == R - 1 -> hand[w] = 0; over++ }
		MAY_DIE
		fi;
		goto again
	:: hand[w] == 1 ->
		if
		:: atomic { hand[w] = 0; over++ }
		:: atomic { slow == NOBODY -> slow = w };
			if
			:: atomic { over == R - 1 -> hand[w] = 0; over++ }
			MAY_DIE
			fi
		MAY_DIE
		fi;
		goto again
	:: hand[w] == 0
	fi;
	/* park */
#ifdef LOOKS_FIRST
	found = mem[BOX(w)] + mem[BOX(1 - w)] > 0;
	STORE(w, STATE(w), PARKED);
	FENCE_PARKER(w);
#else
	STORE(w, STATE(w), PARKED);
	FENCE_PARKER(w);
#ifndef NO_SECOND_LOOK
	LOCK(w, w);
	found = mem[BOX(w)] > 0;
	if :: UNLOCK(w, w) MAY_DIE fi;
	if
	:: atomic { lock[1 - w] == NOBODY -> lock[1 - w] = w };
		found = found || mem[BOX(1 - w)] > 0;
		if :: UNLOCK(1 - w, w) MAY_DIE fi
	:: atomic { lock[1 - w] != NOBODY -> skip };
		found = found || mem[BOX(1 - w)] > 0
	fi;
#endif
#endif
	if
	:: found
	:: else ->
		if
		:: atomic { bell[w] -> bell[w] = false }
		:: over == R
		MAY_DIE
		fi
	fi;
	found = false;
	STORE(w, STATE(w), AWAKE);
	goto again;
dead:
	/* What it has stored reaches memory; its locks are free before anybody knows that it is dead. */
	atomic {
		empty(buffer[w]) ->
		if :: lock[0] == w -> lock[0] = NOBODY :: else fi;
		if :: lock[1] == w -> lock[1] = NOBODY :: else fi;
		if :: slow == w -> slow = NOBODY :: else fi;
		alive[w] = false; found = false
	}
	if
	:: alive[w] -> goto again
	:: over == R
	fi;
done:
	skip
}

proctype Parent() {
	byte v, first, second;
	bool busy;
	do
	:: atomic { over == R -> break }
	:: atomic { !alive[0] -> v = 0; goto bury }
	:: atomic { !alive[1] -> v = 1; goto bury }
	:: ready > 0 ->
		/* The least loaded: who sleeps counts for nothing, who does not for one. */
		first = mem[BOX(0)] + (mem[STATE(0)] != PARKED);
		second = mem[BOX(1)] + (mem[STATE(1)] != PARKED);
		busy = false;
		if
#ifdef ANY_INBOX
		:: v = 0
		:: v = 1
#else
		:: first <= second -> v = 0
		:: second <= first -> v = 1
#endif
		fi;
		atomic {
			if
			:: lock[v] == NOBODY
			:: lock[v] != NOBODY && lock[1 - v] == NOBODY -> v = 1 - v; busy = true
			fi;
			lock[v] = P
		}
#ifdef WAKES_EARLY
		wake(v);
#endif
		atomic { STORE(P, BOX(v), mem[BOX(v)] + 1); ready-- }
		UNLOCK(v, P);
		FENCE_ADDER(P);
#ifndef WAKES_EARLY
		wake(v);
#endif
#ifndef BUSY_UNTOLD
		/* The one whose inbox was busy may sleep, and this may lie behind a long root. */
		if
		:: busy && mem[STATE(1 - v)] == PARKED -> bell[1 - v] = true
		:: else
		fi;
#endif
		first = 0; second = 0; busy = false;
		v = 0;
		goto next;
bury:
		/* Its block is as new before the replacement starts; what it had is queued again. */
		atomic { ready = ready + hand[v]; hand[v] = 0; mem[STATE(v)] = AWAKE };
		bell[0] = true;
		bell[1] = true;
		alive[v] = true;
		v = 0;
next:
		skip
	od
}

init {
	atomic {
		lock[0] = NOBODY; lock[1] = NOBODY;
		alive[0] = true; alive[1] = true;
		ready = R;
		run Worker(0); run Worker(1); run Parent()
	}
}
