#!/usr/bin/env bash
# A certificate authority, made once, and the SuperLink's certificate for the names and addresses it is reached by.
#
#     deploy/certificates.sh FOLDER HOST [HOST ...]
#
# Keep ca.key off the network: whoever has it can pretend to be the SuperLink. Every SuperNode needs ca.crt, the
# SuperLink needs ca.crt, server.pem and server.key. 127.0.0.1 and localhost are named too: the SuperLink's own child
# processes reach it there. Run again, it makes a new server certificate from the same authority.
set -euo pipefail
[ $# -ge 2 ] || { echo "usage: $0 FOLDER HOST [HOST ...], e.g. $0 certificates superlink.example.org 10.0.0.1" >&2; exit 2; }
folder=$1
shift
days=${DAYS:-365}

names=()
for host in "$@" 127.0.0.1 localhost; do
  case $host in
    *[!0-9A-Za-z.:-]* | -*) echo "$0: got host '$host', allowed: names and IP addresses" >&2; exit 2 ;;
    *:* ) names+=("IP:$host") ;;
    *[!0-9.]*) names+=("DNS:$host") ;;
    *) names+=("IP:$host") ;;
  esac
done

umask 077
mkdir -p "$folder"
cd "$folder"
if [ ! -e ca.key ]; then
  openssl ecparam -name prime256v1 -genkey -noout -out ca.key
  openssl req -x509 -new -key ca.key -sha256 -days "$((10 * days))" -subj "/O=Florilegium/CN=Florilegium CA" \
    -addext "keyUsage=critical,keyCertSign,cRLSign" -out ca.crt
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(IFS=,; echo "subjectAltName=${names[*]}") > "$work/names"
openssl ecparam -name prime256v1 -genkey -noout -out "$work/server.key"
openssl req -new -key "$work/server.key" -subj "/O=Florilegium/CN=SuperLink" -out "$work/request"
openssl x509 -req -in "$work/request" -CA ca.crt -CAkey ca.key -set_serial "0x$(openssl rand -hex 16)" -days "$days" \
  -sha256 -extfile "$work/names" -out "$work/server.pem" 2> /dev/null
mv "$work/server.key" "$work/server.pem" .
chmod 644 ca.crt server.pem
echo "$folder: ca.crt, server.pem and server.key for ${names[*]}, valid for $days days"
