/* Home waits for a child that a thief runs: the outcome against the sleep, on a machine that delays stores.
 *
 * Store buffers as in park.pml. The thief may be killed at any store; then the parent says LOST, or RETURNED if
 * it had not begun, and rings. See README.md here and `mpsched/_deque/README.md`, Join and No lost wake-up.
 */

#define STATE 0              /* home's */
#define JOINING 1
#define AWAKE 0
#define CHILD 1              /* the state word of the child */
#define CLAIMED 0            /* at first */
#define RUNNING 1
#define DONE 2
#define LOST 3
#define RETURNED 4
#define OUTCOME 2            /* the area of the child's entry */

byte mem[3];
chan buffer[2] = [3] of { byte, byte };
#define HOME 0
#define THIEF 1
bool bell, dead, joined;

#define STORE(me, at, value) buffer[me]!at, value
#define FENCE(me) empty(buffer[me])
#ifdef NO_FENCE_HOME
#define FENCE_HOME skip
#else
#define FENCE_HOME FENCE(HOME)
#endif
#ifdef NO_FENCE_THIEF
#define FENCE_THIEF skip
#else
#define FENCE_THIEF FENCE(THIEF)
#endif

active proctype Memory() {
	byte at, value;
end:
	do
	:: atomic { buffer[HOME]?at, value -> mem[at] = value; at = 0; value = 0 }
	:: atomic { buffer[THIEF]?at, value -> mem[at] = value; at = 0; value = 0 }
	od
}

active proctype Home() {
	byte word;
again:
	word = mem[CHILD];
	if
	:: word == DONE ->
		assert(mem[OUTCOME] == 1);
		goto ended
	:: word == LOST || word == RETURNED ->
		/* Calls it here. */
		goto ended
	:: word == CLAIMED || word == RUNNING
	fi;
	STORE(HOME, STATE, JOINING);
	FENCE_HOME;
#ifndef NO_SECOND_LOOK
	if
	:: mem[CHILD] != word
	:: else ->
		atomic { bell -> bell = false }
	fi;
#else
	atomic { bell -> bell = false }
#endif
	STORE(HOME, STATE, AWAKE);
	FENCE(HOME);
	goto again;
ended:
	joined = true
}

#define MAY_DIE :: true -> goto killed

active proctype Thief() {
	if :: STORE(THIEF, CHILD, RUNNING) MAY_DIE fi;
#ifdef DONE_FIRST
	if :: STORE(THIEF, CHILD, DONE) MAY_DIE fi;
	if :: STORE(THIEF, OUTCOME, 1) MAY_DIE fi;
#else
	if :: STORE(THIEF, OUTCOME, 1) MAY_DIE fi;
	if :: STORE(THIEF, CHILD, DONE) MAY_DIE fi;
#endif
	FENCE_THIEF;
	if
	:: atomic { mem[STATE] == JOINING -> bell = true }
	:: mem[STATE] != JOINING
	MAY_DIE
	fi;
	goto over;
killed:
	atomic { empty(buffer[THIEF]) -> dead = true };
over:
	skip
}

active proctype Parent() {
	if
	:: dead ->
		if
		:: mem[CHILD] == CLAIMED -> mem[CHILD] = RETURNED
		:: mem[CHILD] == RUNNING -> mem[CHILD] = LOST
		:: else
		fi;
#ifndef NO_BELL
		bell = true
#endif
	:: joined
	fi
}
