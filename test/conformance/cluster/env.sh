# Paths and addresses. Sourced by the scripts in this folder.
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$HERE/../../.." && pwd)        # nkp's repository
W=${CONFORMANCE:-$ROOT/bin/conformance}   # programs, images, clusters, results
BIN=$W/bin
K=$W${KUBERNETES:+/kubernetes-$KUBERNETES} # what depends on the release of Kubernetes
NODES=${NODES:-3}
PATH=$K/bin:$BIN:$PATH

# IP_FAMILY is ipv4, ipv6, or dual. FAMILIES are the cluster's address families; Services that ask for none get the first.
case ${IP_FAMILY:=ipv4} in
ipv4) FAMILIES=4 ;;
ipv6) FAMILIES=6 ;;
dual) FAMILIES='4 6' ;;
*) echo "IP_FAMILY=$IP_FAMILY is none of ipv4, ipv6, dual" >&2; exit 2 ;;
esac

# Addresses and prefixes of a FAMILY. NODE 0 is control.
address() { # FAMILY NODE
	case $1$2 in 40) echo 172.16.0.1 ;; 4*) echo 172.16.0.$((10 + $2)) ;; 60) echo fd00:172::1 ;; 6*) echo "fd00:172::1$2" ;; esac
}
pods() { if [ "$1" = 4 ]; then echo "10.244.$2.0/24"; else echo "fd00:244:0:$2::/64"; fi; } # FAMILY NODE
gateway() { if [ "$1" = 4 ]; then echo "10.244.$2.1"; else echo "fd00:244:0:$2::1"; fi; } # FAMILY NODE
cluster_cidr() { if [ "$1" = 4 ]; then echo 10.244.0.0/16; else echo fd00:244::/56; fi; } # FAMILY
services() { if [ "$1" = 4 ]; then echo 10.96.0.0/16; else echo fd00:96::/112; fi; } # FAMILY
dns() { if [ "$1" = 4 ]; then echo 10.96.0.10; else echo fd00:96::a; fi; } # FAMILY
anywhere() { if [ "$1" = 4 ]; then echo 0.0.0.0/0; else echo ::/0; fi; } # FAMILY
on_link() { if [ "$1" = 4 ]; then echo "$2/24"; else echo "$2/64 nodad"; fi; } # FAMILY ADDRESS: as ip addr add takes it; pods and machines
# joined FUNCTION [NODE]: its results for all families, with commas between them
joined() {
	local f list=
	for f in $FAMILIES; do list+=,$("$1" "$f" "${@:2}"); done
	echo "${list#,}"
}
quoted() { echo "\"$("$2" "$1")\""; } # FAMILY FUNCTION
PRIMARY=${FAMILIES%% *}
API=$(address "$PRIMARY" 0)
API_HOST=$API
[ "$PRIMARY" = 4 ] || API_HOST="[$API]"

# cluster PLANE: the name of that plane's cluster; CLUSTER distinguishes clusters of one plane
cluster() { echo "$1${CLUSTER:+-$CLUSTER}"; }
# state PLANE: the folder of that plane's cluster
state() { echo "$W/clusters/$(cluster "$1")"; }

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

# addresses FILE: a manifest with the addresses of this cluster's families
addresses() { sed -e "s|CLUSTER_CIDR|$(joined cluster_cidr)|" -e "s|API_HOST|$API_HOST|" -e "s|DNS_IPS|$(joined quoted dns)|" -e "s|DNS_IP|$(dns "$PRIMARY")|" "$1"; }
