/* Home, which spawns, and thieves, which want children of it, on a machine that delays stores.
 *
 * Store buffers as in park.pml. Home's helper, and the patience of thieves, are not there: what they make good
 * is asked at the end, when nobody can move: whoever sleeps while home has private children has left a request
 * that home reads at its next spawn (WANT), and nobody sleeps while the ring holds a child.
 * See README.md here and `mpsched/_deque/README.md`, No lost wake-up.
 */

#ifndef THIEVES
#define THIEVES 2
#endif
#ifndef SPAWNS
#define SPAWNS 2
#endif
#define NOBODY 9

#define FORKS 0
#define WANT 1
#define TAIL 2               /* of the ring: home's; how many were pushed */
#define HEAD 7               /* how many were taken */
#define RING (mem[TAIL] - mem[HEAD])
#define WAITS(t) (3 + (t))   /* t is 0 or 1: worker 1 + t */
#define STATE(t) (5 + (t))
#define AWAKE 0
#define PARKED 1

byte mem[8];
chan buffer[3] = [4] of { byte, byte };      /* home's is the last */
#define HOME 2
byte lock = NOBODY;
bool bell[2], asleep[2];
byte private, tail;          /* home's own memory; it reads its own stores at once */

#define STORE(me, at, value) buffer[me]!at, value
#define FENCE(me) empty(buffer[me])
#define UNLOCK(me) atomic { empty(buffer[me]) -> lock = NOBODY }
#ifdef NO_FENCE_FORKS
#define FENCE_FORKS skip
#else
#define FENCE_FORKS FENCE(HOME)
#endif
#ifdef NO_FENCE_WANT
#define FENCE_WANT skip
#else
#define FENCE_WANT FENCE(HOME)
#endif
#ifdef NO_FENCE_THIEF
#define FENCE_THIEF(me) skip
#else
#define FENCE_THIEF(me) FENCE(me)
#endif

active proctype Memory() {
	byte at, value;
end:
	do
	:: atomic { buffer[0]?at, value -> mem[at] = value; at = 0; value = 0 }
	:: atomic { buffer[1]?at, value -> mem[at] = value; at = 0; value = 0 }
	:: atomic { buffer[HOME]?at, value -> mem[at] = value; at = 0; value = 0 }
	od
}

/* Each word is looked at by itself. */
inline count_asking() {
	asking = 0;
	if :: mem[WAITS(0)] -> asking++ :: else fi;
	if :: THIEVES == 2 && mem[WAITS(1)] -> asking++ :: else fi
}

inline ring_those_who_ask() {
	ready = tail - mem[HEAD];
	left = ready;
	t = 0;
	do
	:: t < THIEVES ->
		if
		:: left > 0 && mem[WAITS(t)] ->
			left--;
			if :: mem[STATE(t)] == PARKED -> bell[t] = true :: else fi
		:: else
		fi;
		t++
	:: else -> break
	od;
	t = 0; left = 0
}

inline answer() {
	count_asking();
	do
	:: private > 0 && tail - mem[HEAD] < asking ->
		/* Without the lock. */
		atomic { tail++; STORE(HOME, TAIL, tail); private-- }
	:: else -> break
	od;
	/* The stack had fewer than were asked for. */
	scarce = private == 0 && tail - mem[HEAD] < asking;
	STORE(HOME, WANT, 0);
	FENCE_WANT;
	ring_those_who_ask();
#ifndef NO_LOOK_AFTER_WANT
	count_asking();
	if :: asking > ready || asking > 0 && scarce -> STORE(HOME, WANT, 1) :: else fi;
#endif
	asking = 0; ready = 0; scarce = false
}

active proctype Home() {
	byte spawned, asking, ready, t, left;
	bool scarce;
	do
	:: spawned < SPAWNS ->
		private++;
		spawned++;
		if
		:: spawned == 1 ->
			/* The first spawn of a root looks at WAITS, whatever WANT says. */
			STORE(HOME, FORKS, 1);
			FENCE_FORKS;
			count_asking();
			if :: asking > 0 -> answer() :: else fi
		:: else ->
			if :: mem[WANT] -> answer() :: else fi
		fi
	:: else -> break
	od;
	/* Nobody can move any more. */
	atomic {
		timeout ->
		assert(RING == 0 || !asleep[0] && (THIEVES == 1 || !asleep[1]));
		assert(private == 0 || mem[WANT] == 1 || !asleep[0] && (THIEVES == 1 || !asleep[1]))
	}
}

proctype Thief(byte w) {
	bool found;
end:
	do
	:: true ->
		if
		:: mem[FORKS] && RING > 0 ->
			if
			:: atomic { lock == NOBODY -> lock = w };
				if
				:: RING > 0 -> STORE(w, HEAD, mem[HEAD] + 1); found = true
				:: else
				fi;
				UNLOCK(w);
				/* It asks until it has something. */
				if :: found -> found = false; STORE(w, WAITS(w), 0) :: else fi
			:: atomic { lock != NOBODY -> skip }
			fi
		:: else
		fi;
#ifdef WANT_FIRST
		STORE(w, WANT, 1);
#endif
		STORE(w, WAITS(w), 1);
		STORE(w, STATE(w), PARKED);
		FENCE_THIEF(w);
#ifndef WANT_FIRST
		if :: mem[FORKS] -> STORE(w, WANT, 1) :: else fi;
#endif
		if
		:: mem[FORKS] ->
			if
			:: atomic { lock == NOBODY -> lock = w };
				found = RING > 0;
				UNLOCK(w)
			:: atomic { lock != NOBODY -> skip };
				found = RING > 0
			fi
		:: else
		fi;
		if
		:: found
		:: else ->
			asleep[w] = true;
endasleep:
			atomic { bell[w] -> bell[w] = false; asleep[w] = false }
		fi;
		found = false;
		STORE(w, STATE(w), AWAKE)
	od
}

init {
	atomic {
		run Thief(0);
		if :: THIEVES == 2 -> run Thief(1) :: else fi
	}
}
