#!/usr/bin/env bash
# One company's authority and certificate, by which the other parties of vertical runs recognise its party.
#
#     deploy/peer-certificate.sh FOLDER NAME
#     deploy/peer-certificate.sh FOLDER NAME OTHER-authority.crt [OTHER-authority.crt ...]
#
# The first form makes the files in FOLDER and prints the SHA-256 of NAME-authority.crt. Send that file to the other
# companies, and read them the SHA-256 over the telephone: all other files stay. The party reads NAME.crt and NAME.key;
# NAME-authority.key belongs offline. Existing keys and certificates are never replaced. For a new certificate of the same
# authority, remove NAME.crt and NAME.key and run the first form again: the other companies change nothing.
#
# The second form reads the files of the other companies, writes FOLDER/NAME-peers.pem, and prints the lines for the file
# of the party's settings. Standard output has these lines only, so it can be appended to that file. The authority of
# NAME itself is left out, so the arguments may be the files of all companies.
set -euo pipefail
usage="usage: $0 FOLDER NAME [OTHER-authority.crt ...], e.g. $0 peers bank"
fail() { echo "$0: $1" >&2; exit "${2:-1}"; }
check_name() { # a company's name is also the name of a pin and a name in a certificate
  case $1 in
    '' | -* | *- | *[!0-9A-Za-z-]*) fail "got company '$1', allowed: letters, digits and hyphens between them" 2 ;;
  esac
  [ ${#1} -le 40 ] || fail "got a company of ${#1} characters, allowed: at most 40" 2
}
sha256_of() { openssl x509 -in "$1" -outform DER | openssl dgst -sha256 -r | cut -d ' ' -f 1; }

[ $# -ge 2 ] || { echo "$usage" >&2; exit 2; }
folder=$1 name=$2 days=${DAYS:-365}
shift 2
check_name "$name"
umask 077
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
case $folder in
  *[\"\\]*) fail "got folder '$folder', allowed: a path without quotes and backslashes" 2 ;;
esac
own=$folder/$name
work=$(mktemp -d "$folder/.new.XXXXXX")
trap 'rm -rf "$work"' EXIT

if [ $# -gt 0 ]; then
  for file in crt key; do [ -e "$own.$file" ] || fail "$own.$file: no such file; run '$0 $folder $name' first"; done
  pins=()
  for file in "$@"; do
    other=$(basename "$file")
    case $other in
      *-authority.crt) other=${other%-authority.crt} ;;
      *) fail "got file '$file', allowed: another company's NAME-authority.crt" 2 ;;
    esac
    check_name "$other"
    openssl x509 -in "$file" -out "$work/one" 2> /dev/null || fail "$file: not a certificate in PEM"
    [ "$(grep -c 'BEGIN CERTIFICATE' "$file")" = 1 ] || fail "$file: several certificates; allowed: the authority's only"
    openssl x509 -in "$work/one" -noout -text | grep -q CA:TRUE || fail "$file: the certificate of a party, not of its authority"
    openssl x509 -in "$work/one" -noout -checkend 0 > /dev/null || fail "$file: the certificate has expired"
    digest=$(sha256_of "$work/one")
    if [ -e "$own-authority.crt" ] && [ "$digest" = "$(sha256_of "$own-authority.crt")" ]; then
      echo "$file: the authority of $name itself; left out" >&2
      continue
    fi
    case " ${pins[*]-} " in
      *" $other="*) fail "got company '$other' twice" 2 ;;
      *"=$digest "*) fail "$file: the same certificate as an earlier file's" ;;
    esac
    pins+=("$other=$digest")
    cat "$work/one" >> "$work/peers"
    echo "$other: compare with the SHA-256 that $other has read to you: $digest" >&2
  done
  [ ${#pins[@]} -gt 0 ] || fail "got no other company, allowed: at least one"
  mv "$work/peers" "$own-peers.pem"
  cat <<END
[vertical]
peer-cert = "$own.crt"
peer-key = "$own.key"
peer-ca = "$own-peers.pem"
pinned-peers = "${pins[*]}"
fewest-parties = $((${#pins[@]} + 1))
END
  exit
fi

for file in crt key; do [ ! -e "$own.$file" ] || fail "$own.$file exists: a company keeps its certificate, or removes $name.crt and $name.key first"; done
sign() { # FILE SUBJECT DAYS, with the signer's options after them: a certificate for a new key
  local file=$1 subject=$2 valid=$3
  shift 3
  openssl ecparam -name prime256v1 -genkey -noout -out "$file.key"
  openssl req -new -key "$file.key" -subj "$subject" -out "$work/request"
  openssl x509 -req -in "$work/request" "$@" -set_serial "0x$(openssl rand -hex 16)" -days "$valid" -sha256 \
    -extfile "$work/extensions" -out "$file.crt" 2> "$work/errors" || fail "$(cat "$work/errors")"
}
authority=$own-authority made="a new certificate of the same authority"
if [ ! -e "$authority.crt" ] && [ ! -e "$authority.key" ]; then
  authority=$work/$name-authority made="a new authority and a certificate"
  printf '%s\n' basicConstraints=critical,CA:TRUE,pathlen:0 keyUsage=critical,keyCertSign,cRLSign subjectKeyIdentifier=hash > "$work/extensions"
  # of two authorities with one name, each would be tried as the issuer of the other's certificates
  sign "$authority" "/O=$name/CN=authority of $name $(openssl rand -hex 8)" "$((10 * days))" -signkey "$authority.key"
fi
for file in crt key; do [ -e "$authority.$file" ] || fail "$authority.$file: no such file; bring it back to make another certificate of $name"; done
printf '%s\n' basicConstraints=critical,CA:FALSE keyUsage=critical,digitalSignature extendedKeyUsage=serverAuth,clientAuth \
  "subjectAltName=DNS:$name" subjectKeyIdentifier=hash authorityKeyIdentifier=keyid > "$work/extensions"
sign "$work/$name" "/O=$name/CN=$name" "$days" -CA "$authority.crt" -CAkey "$authority.key"
chmod 644 "$work"/*.crt
[ "$authority" = "$own-authority" ] || mv "$authority.key" "$authority.crt" "$folder"
mv "$work/$name.key" "$work/$name.crt" "$folder"
cat <<END
$folder has $made:
  $name-authority.crt  send it to the other companies
  $name-authority.key  keep it offline: it makes further certificates of $name
  $name.crt, $name.key  stay with the party of $name; valid for $days days
SHA-256 of $name-authority.crt, for the other companies to compare:
  $name=$(sha256_of "$own-authority.crt")
Lines for the party's settings, once the other companies have sent theirs:
  $0 $folder $name OTHER-authority.crt ...
END
