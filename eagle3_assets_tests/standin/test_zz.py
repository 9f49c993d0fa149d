import asyncio, json
from eagle3_assets_tests.standin.conftest import *
from eagle3_assets.standin.source import Bank
def test_x(recorded, kimi, tmp_path):
    for name,row in recorded.items():
        if 'stream' in name: continue
        m=json.loads(row["response_body"])["choices"][0]["message"]
        calls=[(c["id"],c["function"]["arguments"]) for c in m.get("tool_calls",[])]
        ids=spell(kimi, m["reasoning"], m["content"] or "", *calls)
        a=FakeAnswer(ids, tool_names=tuple(c["function"]["name"] for c in m.get("tool_calls",[])))
        p=settings()
        st=Standin(Generator(p,kimi,Bank((a,),kimi,p.source),"0"),Ledger(tmp_path/name.replace('#','_')),KEY,TRUTH_TOKEN)
        async def run():
            async with connected(st) as c:
                return await c.post({**row["request"],"model":SLUG,**only("verbatim")})
        s,h,b=asyncio.run(run())
        mine=json.loads(b); real=json.loads(row["response_body"])
        print(name, s, mine.get("error")); 
        print(mine["choices"]==real["choices"]); print(mine["usage"]); print(real["usage"])
