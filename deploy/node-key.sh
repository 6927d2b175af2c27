#!/usr/bin/env bash
# A key pair with which a SuperNode proves to the SuperLink which site it is.
#
#     deploy/node-key.sh FOLDER SITE
#
# FOLDER/SITE stays at the site; FOLDER/SITE.pub goes to the operator of the SuperLink, who registers it:
#
#     flwr supernode register FOLDER/SITE.pub CONNECTION --name SITE
set -euo pipefail
[ $# -eq 2 ] || { echo "usage: $0 FOLDER SITE, e.g. $0 keys hospital-1" >&2; exit 2; }
folder=$1 site=$2
case $site in
  '' | -* | *[!0-9A-Za-z._-]*) echo "$0: got site '$site', allowed: letters, digits, '.', '_' and '-'" >&2; exit 2 ;;
esac
[ ! -e "$folder/$site" ] || { echo "$0: $folder/$site exists: a site keeps its key, or removes it first" >&2; exit 1; }
umask 077
mkdir -p "$folder"
ssh-keygen -q -t ecdsa -b 384 -N "" -C "$site" -f "$folder/$site"
echo "$folder/$site stays at the site; register $folder/$site.pub"
