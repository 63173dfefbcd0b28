"""Texts that the table of holes reads as one hole of a kind, and texts without one; two spaces separate them."""

from typing import Final

EXAMPLES: Final = {
    "printf": (
        "%s  % d  %5.2f  %(count)d  %1$s  %1$tY  %<PRIuMAX>  %*d  %-*.*f  %@  %%  %n",
        "5 %  100%.",
    ),
    "gcc": (
        "%qs  %<  %>  %+D  %qD  %%",
        "5 %",
    ),
    "pascal": (
        "%0:s  %s  %.2f  %%",
        "5 %",
    ),
    "qt": (
        "%1  %L1  %n  %Ln  %12",
        "5 %  % n",
    ),
    "boost": (
        "%1%  %|1$+5|",
        "5%",
    ),
    "tilde": (
        "~a  ~s  ~10,2f  ~%  ~~  ~:d",
        "~ 5",
    ),
    "element": (
        (
            '<x id="1"/>  <0/>  <br/>  <br />  <g id=\'a\' b="c"/>  <br>  <img src="a.png" alt="a">'
            '  <x id="0"></x>  <x id="1">  <%= name %>  <!-- a -->  <Ctrl>+<Shift>S  <alt>F4  </b>  </0>  </link>'
            "  [/b]  [/url]  `npm install`"
        ),
        "a < b  1 </ 2  <  <b>  <file>  <x  a </ b  a[b]  [b]  `a' and `b'  ``a''  ` a  [a] (b)",
    ),
    "mask": (
        "[X0X]  [X12X]  ⟦1⟧  __PH_0__  XX0XX  XXPH0XX  [[0]]  [[VAR_1]]  <<0>>  <<name>>  ##0##  ##NAME##  @@NAME@@"
        "  __0__  __TOKEN__  [PH0]  [FIRST_NAME]  VAR_1  <?php echo 1 ?>",
        "[X]  __init__  XXL  [[name]]  [TIP]  ##  << 1 >>  A_1  <? a  [0]",
    ),
    "double_braces": (
        ("{{ name }}  {{{raw}}}  {{#if x}}  {{/if}}  {% url 'home' %}  {# note #}  {{count, number}}  {{ a|b:\"c\" }}"),
        "{{}}  {{ a  {a}",
    ),
    "reference": (
        (
            '$t(key)  $t(common:key, {"count": 1})  @:message.hello  @.lower:message.hello  @:(message.hello)'
            "  @:{'a.b'}"
        ),
        "t(key)  a@:b  @ :",
    ),
    "url": (
        (
            "example.org  docs.example.com/a/b  a.co.uk  example.org/  example.org:8080  localhost:80/a"
            "  https://example.org/a?b=c(d)  http://example.org  www.example.org"
            "  https://en.wikipedia.org/wiki/A_(b)  ftp://a/b  mailto:a@b.org  http://[::1]:80/  https://한국.kr/a"
            "  https://x.org/{id}/y  https://ja.wikipedia.org/wiki/日本の歴史/年表?q=한국어  https://zh.wikipedia.org/wiki/北京"
            "  tel:+49-30-1"
        ),
        "a.b  e.g.  end.Der  Node.js  x@example.org  http  ://  www.  hotel: 5  data: a",
    ),
    "path": (
        (
            "/etc/hosts  ~/x  ./a/b.py  ../a  C:\\Users  C:\\Users\\a.txt  C:/x  /usr/share/  /tmp"
            "  \\\\server\\share  $HOME/.config  $(pwd)/b.sh  %APPDATA%\\LibreOffice\\4  C:\\Program Files (x86)\\a.exe"
            "  {installation}/program  <User>/Scripts  C:\\Users\\이름\\a.txt  b.py  README.md  *.docx"
            "  docs/index.html  config.toml  archive.tar.gz  %s/a.py  %1$s/b/a.csv  %(dir)s/a.txt"
        ),
        "and/or  1/2  km/h  he/she  TCP/IP  /  a / b  /s  24/7  a: /b  end.The  e.g. this  a.b  %s/month",
    ),
    "option": (
        "--long-option  --verbose  --output=a/b.txt  --output=FILE  -v",
        "a--b  -- a  ---  --A  -I see  Yes. -I see  -in  a-b  x - y",
    ),
    "braces": (
        (
            "{}  {0}  {name}  { name }  ${x}  #{x}  %{name}  ${a ? b : c}  {user.name!r:>10}  {:{width}}"
            "  {0,number}  {d, date, short}  {0:yyyy MM}  { $user }  { -brand }  {0,choice,0#no|1#{1} one}"
            '  {@html x}  {#if a > b}  { NUMBER($n, digits: 2) }  { "" }'
        ),
        "{ not this one }  { a b  {  }  {=SUM(A1)}",
    ),
    "percent": (
        (
            "%s  %d  %(count)d  %1$s  %1$*2$d  %#@files@  %1$#@files@  %%name%%  %.2f  %-5s  %ld  %@  %1$@  %lld"
            "  %%  %n  %*d  %<n>d  %<PRIu64>  %PRODUCTNAME  %name%  %days"
        ),
        "100% sure  5 %  100%sure  5% a  50% e  50 % d'accord  100%.  5%-10%  5 %ige  5 %, a  %  % a  %-encoded",
    ),
    "variable": (
        (
            "%1  %L1  $1  $HOME  $name  $NAME$  $NAME@1$  $(ARG1)  $[officename]  $A$1  :count  :Name  :NAME  :smile:"
            "  :+1:  [2,*]  [1,Inf["
        ),
        (
            "%10  5%1  5 %1  $10  $1.50  $1,000  $1 million  US$1  $5  US$  $ 5  a$b  $  a:b  a: b  ::a  12:30  a :"
            "  :p  :D  [2]  http://a"
        ),
    ),
    "entity": (
        "&amp;  &#39;  &#x27;  &nbsp;  &brandShortName;  &lt;b&gt;  &lt;/b&gt;  \u200e  \u202b  \u2069",
        "a & b;  R&D  &;  &#;  \u200d",
    ),
    "email": (
        (
            "anna@example.org  a.b+c@example.co.uk  o'brien@example.org  info@사이트.한국  홍길동@example.org"
            "  git@example.org:a/b.git"
        ),
        "a@b  @anna  a@b.  @a.de",
    ),
    "mention": (
        "@anna  @user@host  @user@example.org  @scope/pkg  @scope/pkg@1.2.3  @a-b",
        "x@y  @ home  @  @_  @0.00",
    ),
    "hashtag": (
        "#hashtag  #jumok_2026  #fff  #1a2b3c  #한국어  #100DaysOfCode",
        "#1 hit  #1st  #2nd  #VALUE!  #DIV/0!  #을  C# and F#  # a  a#b  ##  #12",
    ),
    "version": (
        (
            "v1.2.3  1.2.3  1.2.3-rc1  1.2.3rc1  v2  192.168.0.1  10.0.0.0/8  1.0.0+build.5"
            "  550e8400-e29b-41d4-a716-446655440000"
        ),
        "1.5  30.11.2026  2026.11.30  1.234.567  1.2.26  v  3.14",
    ),
    "unit": (
        (
            "10px  16 GB  5GHz  44.1kHz  1.5em  720p  10 km  5\u00a0mm  1.5\u00a0GB  20\u00a0\u20ac  20\u202f%"
            "  5\u202f\u20ac  10&nbsp;km  1\u00a0000  1\u202f000\u00a0km  1920x1080"
        ),
        "1.5 GB  5 apples  10 Gb  12 pt  5\u00a0apples  2\u00a02026  16x16  old MB",
    ),
    "escape": (
        '\\n  \\t  \\u00e9  \\textbf  \\"',
        "\\  \\ n  \\1",
    ),
}
