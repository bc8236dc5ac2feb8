-- A page of jobs, newest first, without results. ARGV: prefix, after id ('' is the first page), most, states ('' is any), kind
-- ('' is all), 'asc' for the oldest first
local name = ARGV[5] == '' and P .. 'jobs' or P .. 'jobs:' .. ARGV[5]
local most, now, is_up = tonumber(ARGV[3]), now_ms(), ARGV[6] == 'asc'
local from = ARGV[2] == '' and (is_up and '-' or '+') or '(' .. ARGV[2]
local page, looked = {}, 0
while #page < most and looked < 2000 do
  local ids = redis.call(is_up and 'ZRANGEBYLEX' or 'ZREVRANGEBYLEX', name, from, is_up and '+' or '-', 'LIMIT', 0, 100)
  if #ids == 0 then break end
  for _, id in ipairs(ids) do
    looked, from = looked + 1, '(' .. id
    local h = redis.call('HMGET', P .. 'job:' .. id, 'state', 'gone')
    if not h[1] or (h[2] and tonumber(h[2]) <= now) then
      redis.call('ZREM', name, id)
    elseif ARGV[4] == '' or string.find(',' .. ARGV[4] .. ',', ',' .. h[1] .. ',', 1, true) then
      page[#page + 1] = {id, redis.call('HGETALL', P .. 'job:' .. id)}
      if #page == most then break end
    end
  end
end
return page
