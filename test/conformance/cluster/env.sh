# Paths and addresses. Sourced by the scripts in this folder.
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$HERE/../../.." && pwd)        # nkp's repository
W=${CONFORMANCE:-$ROOT/bin/conformance}   # programs, images, clusters, results
BIN=$W/bin
NODES=${NODES:-3}
API=172.16.0.1
SERVICES=10.96.0.0/16 PODS=10.244.0.0/16 DNS=10.96.0.10
PATH=$BIN:$PATH

# state PLANE: the folder of that plane's cluster
state() { echo "$W/clusters/$1"; }

# on PLANE MACHINE COMMAND...: runs a command in a machine's namespaces
on() {
	local pid
	pid=$(cat "$(state "$1")/$2/pid") || return 1
	shift 2
	nsenter -t "$pid" -n -m -u -p -- "$@"
}

# patience SECONDS COMMAND...: repeats a command until it succeeds
patience() {
	local end=$((SECONDS + $1))
	shift
	until "$@" >/dev/null 2>&1; do
		[ $SECONDS -lt $end ] || { echo "gave up: $*" >&2; return 1; }
		sleep 0.3
	done
}
